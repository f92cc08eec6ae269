"""Code generated from proto/sipd/v1 by scripts/generate; never edited."""
