"""The arithmetic of a pass: C operations, their binding, and the NumPy twin."""
