"""Benchmarks: run by hand on an idle machine, never part of the tests."""
