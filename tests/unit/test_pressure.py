from __future__ import annotations

from pathlib import Path

from sipd.cgroup import MemoryCgroup
from sipd.pressure import Pressure, Stall, read_pressure

SOME = "some avg10=12.50 avg60=3.25 avg300=0.10 total=12345"
FULL = "full avg10=1.00 avg60=0.50 avg300=0.00 total=99"


def files(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_cgroups_own_pressure_comes_first(tmp_path: Path) -> None:
    group = files(tmp_path / "cg", memory_pressure=f"{SOME}\n{FULL}\n")
    machine = files(tmp_path / "pressure", memory="some avg10=99.00 avg60=99.00 avg300=0.00 total=1\n")
    cgroup = MemoryCgroup(2, group, group)
    assert read_pressure("memory", cgroup, machine) == Pressure(Stall(12.5, 3.25), Stall(1.0, 0.5))


def test_without_a_v2_cgroup_it_is_the_machines(tmp_path: Path) -> None:
    machine = files(tmp_path / "pressure", io=f"{SOME}\n")
    for cgroup in (None, MemoryCgroup(1, tmp_path, tmp_path), MemoryCgroup(2, tmp_path, tmp_path)):
        assert read_pressure("io", cgroup, machine) == Pressure(Stall(12.5, 3.25), None)


def test_a_kernel_that_does_not_tell_gives_none(tmp_path: Path) -> None:
    assert read_pressure("memory", None, tmp_path) is None
    assert read_pressure("memory", None, files(tmp_path / "p", memory="")) is None
    assert read_pressure("memory", None, files(tmp_path / "q", memory="some avg10=x\n")) is None
