"""sipd: a daemon that runs language models larger than the memory it is allowed."""

__version__ = "0.1.0"
