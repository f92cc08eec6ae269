"""Tests; the packages below mirror sipd/ (unit) or hold one kind of trial each."""
