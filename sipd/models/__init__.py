"""Architectures: one file per family gives its names, its shapes and its block as a formula."""
