"""Runs one target under atheris: `python -m tests.fuzz.atheris_main NAME [libFuzzer's options and folders]`.

Invariant: sipd and its template engine are instrumented before anything imports them.
"""

from __future__ import annotations

import importlib
import sys

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional: has no wheel for every machine

from tests.fuzz.bounds import limit_memory
from tests.fuzz.targets import load


def main() -> None:
    """Fuzzes until libFuzzer's options end it; leaves the process with libFuzzer's exit code."""
    _, name, *options = sys.argv
    limit_memory()
    with atheris.instrument_imports(include=["sipd", "jinja2"]):
        target = load(name)
        importlib.import_module("sipd.text.template_environment")  # sipd itself imports it at the first chat only
    atheris.Setup([name, *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
