"""Requests, passes and the one thread that owns the model."""
