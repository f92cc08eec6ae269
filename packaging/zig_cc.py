"""Calls zig's C compiler for one target, in gcc's words: python zig_cc.py TARGET ARGUMENT...

TARGET names the architecture and the oldest glibc, as aarch64-linux-gnu.2.28. zig takes instruction sets of ARM as
-mcpu=generic+v8_2a+dotprod where gcc says -march=armv8.2-a+dotprod.
"""

from __future__ import annotations

import re
import subprocess
import sys

import ziglang


def zig_arguments(arguments: list[str]) -> list[str]:
    """Returns gcc's arguments as zig wants them."""
    return [_cpu(each) if each.startswith("-march=armv8") else each for each in arguments]


def _cpu(march: str) -> str:
    found = re.fullmatch(r"-march=armv8(?:\.(\d))?-a((?:\+\w+)*)", march)
    if found is None:
        raise SystemExit(f"zig_cc: found {march}, wanted -march=armv8[.N]-a[+FEATURE...]")
    version = f"v8_{found[1]}a" if found[1] else "v8a"
    return f"-mcpu=generic+{version}{found[2]}"


if __name__ == "__main__":
    zig = f"{ziglang.__path__[0]}/zig"
    # zig adds checks of its own to C that is not optimised; the flags of the build decide that here.
    command = [zig, "cc", "-target", sys.argv[1], "-fno-sanitize=undefined", *zig_arguments(sys.argv[2:])]
    sys.exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - a compiler's arguments
