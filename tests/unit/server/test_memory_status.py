from __future__ import annotations

from pathlib import Path

from sipd.cgroup import find_memory_cgroup
from sipd.memory import Ledger, MemoryLimit, open_ledger
from sipd.server.memory_status import describe_memory
from tests.unit.server.fakes import status
from tests.unit.test_cgroup import V2, machine

MIB = 1024**2


def test_the_cgroups_limit_events_and_pressure_are_told(tmp_path: Path) -> None:
    files = {
        "cg/a/memory.max": str(300 * MIB),
        "cg/a/memory.events": "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4",
        "cg/a/memory.pressure": "some avg10=1.50 avg60=0.50 avg300=0 total=1\nfull avg10=0.25 avg60=0 avg300=0 total=1",
        "cg/a/io.pressure": "some avg10=9.00 avg60=8.00 avg300=0 total=1",
    }
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/a\n", [V2], files))
    message = describe_memory(Ledger(100 * MIB, MIB, MIB), cgroup, status())
    group = message.cgroup
    assert group.limit_bytes == 300 * MIB
    assert (group.high_events, group.max_events, group.oom_events, group.oom_kill_events) == (1, 2, 3, 4)
    assert (message.memory_pressure.some_avg10, message.memory_pressure.full_avg10) == (1.5, 0.25)
    assert message.io_pressure.some_avg60 == 8.0
    assert not message.io_pressure.HasField("full_avg10")


def test_the_limit_is_that_of_now_and_changes_are_counted(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": str(800 * MIB)})
    ledger = open_ledger(None, proc)
    (tmp_path / "cg/a/memory.max").write_text(str(700 * MIB))
    assert ledger.watch is not None
    change = ledger.watch.look()
    assert change is not None
    ledger.relimit(change.now)
    message = describe_memory(ledger, find_memory_cgroup(proc), status())
    assert (message.budget_bytes, message.cgroup.limit_bytes, message.limit_changes) == (700 * MIB, 700 * MIB, 1)


def test_what_the_kernel_does_not_tell_is_absent(tmp_path: Path) -> None:
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": "max"}))
    ledger = Ledger(100 * MIB, MIB, MIB)
    ledger.relimit(MemoryLimit(90 * MIB, "budget"))
    message = describe_memory(ledger, cgroup, None)
    assert not message.cgroup.HasField("limit_bytes")
    assert not message.cgroup.HasField("oom_kill_events")
    assert message.limit_changes == 0
