"""Loads the kernel library of a wheel here: python check_wheel.py WHEEL. Fails when it lacks what the CPU has.

A compiler whose CPU detection always says no makes a wheel that works, and is ten times slower.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import zipfile
from pathlib import Path

# flag of /proc/cpuinfo → the instruction set that the library must then offer
WANTED = {"avx2": "avx2", "avx512_vnni": "avx512vnni", "asimd": "neon", "asimddp": "neon_dotprod"}


def main() -> int:
    """Returns 0 when the library offers all that this CPU can run."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(sys.argv[1]) as wheel:
        library = ctypes.CDLL(wheel.extract("sipd/kernels/_native.so", folder))
    library.sipd_isa_name.restype = ctypes.c_char_p
    found = [library.sipd_isa_name(i).decode() for i in range(library.sipd_isa_count()) if _is_supported(library, i)]
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    missing = [isa for flag, isa in WANTED.items() if flag in flags and isa not in found]
    print(f"instruction sets on this machine: {', '.join(found)}")
    if missing:
        print(f"the CPU has {', '.join(missing)} as well", file=sys.stderr)
    return 1 if missing else 0


def _is_supported(library: ctypes.CDLL, number: int) -> bool:
    return bool(library.sipd_isa_is_supported(number))


if __name__ == "__main__":
    sys.exit(main())
