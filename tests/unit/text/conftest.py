"""Property tests of this folder have no deadline per example: a busy machine is no fault."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("text", deadline=None)
settings.load_profile("text")
