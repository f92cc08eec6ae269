from __future__ import annotations

from pathlib import Path

import pytest

from sipd.cgroup import MemoryCgroup, MemoryEvents, find_memory_cgroup, is_controller_missing

V1_UNLIMITED = "9223372036854771712"


def machine(folder: Path, own: str, mounts: list[tuple[str, str, str]], files: dict[str, str]) -> Path:
    """Builds /proc and cgroup trees. `mounts`: (root, mount point, "type - options"); returns the proc path."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(own)
    lines = [
        f"{30 + n} 1 0:{n} {root} {folder / point} rw,nosuid shared:{n} - {kind}"
        for n, (root, point, kind) in enumerate(mounts)
    ]
    (proc / "self/mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/root rw\n" + "\n".join(lines) + "\n")
    for _, point, _ in mounts:
        (folder / point).mkdir(parents=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return proc


V2 = ("/", "cg", "cgroup2 cgroup2 rw")
V1 = ("/", "cg/memory", "cgroup cgroup rw,memory")


def test_v2_takes_the_lowest_limit_on_the_way_up(tmp_path: Path) -> None:
    files = {"cg/a/memory.max": "300", "cg/a/b/memory.max": "max", "cg/a/b/memory.current": "120"}
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/a/b\n", [V2], files))
    assert cgroup is not None
    assert (cgroup.version, cgroup.limit_bytes(), cgroup.current_bytes(), cgroup.peak_bytes()) == (2, 300, 120, None)


def test_v2_without_a_limit_anywhere_has_none(tmp_path: Path) -> None:
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": "max"}))
    assert cgroup is not None
    assert cgroup.limit_bytes() is None


def test_v2_below_an_undelegated_leaf_still_sees_the_limit_above(tmp_path: Path) -> None:
    files = {"cg/a/memory.max": "300", "cg/a/leaf/cgroup.procs": ""}
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/a/leaf\n", [V2], files))
    assert cgroup is not None
    assert cgroup.limit_bytes() == 300


@pytest.mark.parametrize("unlimited", [V1_UNLIMITED, "9223372036854710272"], ids=["4k pages", "64k pages"])
def test_v1_unlimited_is_no_limit_for_any_page_size(tmp_path: Path, unlimited: str) -> None:
    files = {"cg/memory/a/memory.limit_in_bytes": unlimited, "cg/memory/memory.limit_in_bytes": unlimited}
    cgroup = find_memory_cgroup(machine(tmp_path, "4:memory:/a\n", [V1], files))
    assert cgroup is not None
    assert (cgroup.version, cgroup.limit_bytes()) == (1, None)


def test_v1_takes_the_lowest_limit_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "cg/memory/a/memory.limit_in_bytes": "500",
        "cg/memory/a/b/memory.limit_in_bytes": V1_UNLIMITED,
        "cg/memory/a/b/memory.usage_in_bytes": "99",
        "cg/memory/a/b/memory.max_usage_in_bytes": "101",
        "cg/memory/a/b/memory.stat": "cache 1\nrss 2\ntotal_cache 30\ntotal_rss 60",
    }
    cgroup = find_memory_cgroup(machine(tmp_path, "4:memory:/a/b\n", [V1], files))
    assert cgroup is not None
    assert (cgroup.limit_bytes(), cgroup.current_bytes(), cgroup.peak_bytes()) == (500, 99, 101)
    assert (cgroup.page_bytes().anonymous, cgroup.page_bytes().file) == (60, 30)


def test_on_a_hybrid_system_the_v1_memory_tree_counts(tmp_path: Path) -> None:
    files = {"cg/memory/a/memory.limit_in_bytes": "500"}
    unified = ("/", "cg/unified", "cgroup2 cgroup2 rw")
    cgroup = find_memory_cgroup(machine(tmp_path, "4:memory:/a\n0::/a\n", [unified, V1], files))
    assert cgroup is not None
    assert (cgroup.version, cgroup.limit_bytes()) == (1, 500)


def test_in_a_container_the_mounted_root_is_taken_off_the_path(tmp_path: Path) -> None:
    mount = ("/docker/abc", "cg", "cgroup2 cgroup2 rw")
    files = {"cg/memory.max": "700", "cg/in/memory.max": "max"}
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/docker/abc/in\n", [mount], files))
    assert cgroup is not None
    assert cgroup.path == tmp_path / "cg/in"
    assert cgroup.limit_bytes() == 700


def test_a_path_outside_the_mount_falls_back_to_the_mount(tmp_path: Path) -> None:
    cgroup = find_memory_cgroup(machine(tmp_path, "0::/../other\n", [V2], {"cg/memory.max": "700"}))
    assert cgroup is not None
    assert cgroup.limit_bytes() == 700


def test_raspberry_pi_os_without_the_controller_is_noticed(tmp_path: Path) -> None:
    files = {"cg/cgroup.controllers": "cpuset cpu io pids", "cg/a/cgroup.controllers": "cpu io pids"}
    proc = machine(tmp_path, "0::/a\n", [V2], files)
    assert find_memory_cgroup(proc) is None
    assert is_controller_missing(proc)


def test_a_machine_without_cgroups_misses_no_controller(tmp_path: Path) -> None:
    proc = machine(tmp_path, "", [], {})
    assert find_memory_cgroup(proc) is None
    assert not is_controller_missing(proc)


def found(proc: Path) -> MemoryCgroup:
    cgroup = find_memory_cgroup(proc)
    assert cgroup is not None
    return cgroup


def test_v2_counts_the_throttling_limit_as_a_limit_and_tells_the_hard_one_apart(tmp_path: Path) -> None:
    files = {"cg/a/memory.max": "500", "cg/a/memory.high": "400", "cg/a/b/memory.max": "450"}
    cgroup = found(machine(tmp_path, "0::/a/b\n", [V2], files))
    assert (cgroup.limit_bytes(), cgroup.hard_limit_bytes()) == (400, 450)


def test_v1_takes_the_limit_of_levels_that_a_container_cannot_see(tmp_path: Path) -> None:
    mount = ("/docker/abc", "cg/memory", "cgroup cgroup rw,memory")
    files = {
        "cg/memory/memory.limit_in_bytes": V1_UNLIMITED,
        "cg/memory/memory.stat": "cache 1\nhierarchical_memory_limit 900",
    }
    assert found(machine(tmp_path, "4:memory:/docker/abc\n", [mount], files)).limit_bytes() == 900


def test_v1_groups_without_hierarchy_ignore_the_limit_above(tmp_path: Path) -> None:
    files = {
        "cg/memory/a/memory.limit_in_bytes": "500",
        "cg/memory/a/b/memory.limit_in_bytes": V1_UNLIMITED,
        "cg/memory/a/b/memory.stat": f"cache 1\nhierarchical_memory_limit {V1_UNLIMITED}",
    }
    assert found(machine(tmp_path, "4:memory:/a/b\n", [V1], files)).limit_bytes() is None


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    proc = machine(folder, "0::/a\n", [V2], {"cg/a/memory.max": "300"})
    mountinfo = proc / "self/mountinfo"
    mountinfo.write_text(mountinfo.read_text().replace("a b", "a\\040b"))
    assert found(proc).limit_bytes() == 300


def test_v2_tells_what_happened(tmp_path: Path) -> None:
    events = "low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0"
    files = {"cg/a/memory.max": "300", "cg/a/memory.events": events, "cg/memory.events": "max 9\noom_kill 4"}
    cgroup = found(machine(tmp_path, "0::/a\n", [V2], files))
    assert cgroup.events() == MemoryEvents(high=3, max=7, oom=2, oom_kill=1)
    assert cgroup.events(cgroup.levels()[1]) == MemoryEvents(max=9, oom_kill=4)


def test_v1_tells_how_often_the_limit_was_met_and_who_was_killed(tmp_path: Path) -> None:
    files = {
        "cg/memory/a/memory.failcnt": "12",
        "cg/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    }
    assert found(machine(tmp_path, "4:memory:/a\n", [V1], files)).events() == MemoryEvents(max=12, oom_kill=2)


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    cgroup = found(machine(tmp_path, "4:memory:/a\n", [V1], {"cg/memory/a/cgroup.procs": ""}))
    assert cgroup.events() == MemoryEvents()
    assert (cgroup.limit_bytes(), cgroup.hard_limit_bytes(), cgroup.swap_limit_bytes()) == (None, None, None)


def test_the_swap_limit_is_the_lowest_on_the_way_up(tmp_path: Path) -> None:
    files = {"cg/a/memory.swap.max": "0", "cg/a/b/memory.swap.max": "max", "cg/a/b/memory.max": "300"}
    assert found(machine(tmp_path, "0::/a/b\n", [V2], files)).swap_limit_bytes() == 0
