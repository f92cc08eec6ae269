from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.sharing import churn, clients, drafting, gap, prefix, speculation
from tests.benchmarks.sharing.asking import gaps_between
from tests.benchmarks.sharing.bench import typed
from tests.benchmarks.sharing.jobs import Job, last_line
from tests.benchmarks.sharing.machine import machine_line
from tests.benchmarks.sharing.run import main
from tests.benchmarks.sharing.table import Table, verdict


def turn(rate: float, ids: list[int], accepted: int = 0, drafted: int = 0) -> dict[str, Any]:
    return {"ids": ids, "tokens_per_s": rate, "tokens_per_pass": 2.0, "accepted": accepted, "drafted": drafted}


def task(on: list[float], off: list[float], kind: str = "prose") -> dict[str, Any]:
    turns = {"on": [turn(rate, [1, 2], 3, 4) for rate in on], "off": [turn(rate, [1, 2]) for rate in off]}
    return {"name": "tale", "kind": kind} | turns


def test_a_job_arrives_at_the_worker_as_it_was_sent() -> None:
    job = Job("gap", Path("m.gguf"), 7, {"context": 3, "snapshot_dir": "d"}, {"clients": 2})
    assert Job.from_json(job.to_json()) == job


def test_only_settings_that_are_paths_become_paths() -> None:
    assert typed({"snapshot_dir": "d", "context": 3}) == {"snapshot_dir": Path("d"), "context": 3}


def test_the_last_line_is_the_last_that_is_not_blank() -> None:
    assert last_line("a warning\n{}\n\n") == "{}"


def test_a_worker_that_wrote_nothing_is_told_of() -> None:
    assert last_line("\n") == "nothing was written"


def test_a_gap_counts_when_any_of_it_lies_in_the_window() -> None:
    assert gaps_between([0.0, 1.0, 3.0, 7.0, 8.0], 2.0, 4.0) == [2.0, 4.0]


def test_the_ratio_of_clients_is_to_one_client() -> None:
    one = {"tokens_per_s": 2.0, "bytes_per_token": 80e6, "s_per_pass": 0.5, "compute_s_per_pass": 0.1}
    found = {1: one, 8: one | {"tokens_per_s": 13.0, "bytes_per_token": 10e6}}
    assert clients.rows(found)[1] == ["8", "13.00", "6.50", "10.00", "1/8.00", "0.500", "0.100"]


def test_gaps_are_told_in_milliseconds() -> None:
    seconds = {"before_s": 0.1, "longest_s": 0.2, "worst_s": 0.3, "median_s": 0.15, "first_token_s": 4.0}
    result = seconds | {"decoder_tokens": 5, "row_cap": 40, "max_rows": 2048}
    cells = gap.row("resident", is_capped=False, result=result)
    assert cells == ["resident", "none (2048 rows)", "100", "200", "300", "150", "5", "4.00"]


def prefix_turn(seconds: float, cached: int, restored: int, ids: list[int]) -> dict[str, Any]:
    return {"first_token_s": seconds, "cached_tokens": cached, "restored_tokens": restored, "ids": ids}


def test_every_second_turn_of_the_first_process_is_a_repeat() -> None:
    first = [prefix_turn(8.0, 0, 0, [1]), prefix_turn(0.5, 1999, 0, [1])]
    rows = prefix.rows_of("full speed", first, [prefix_turn(1.0, 1984, 1984, [1])])
    assert [row[2:] for row in rows] == [
        ["8.000", "1/1.0", "0", "0", "equal"],
        ["0.500", "1/16.0", "1999", "0", "equal"],
        ["1.000", "1/8.0", "0", "1984", "equal"],
    ]


def test_other_ids_from_disk_are_told_of() -> None:
    first = [prefix_turn(8.0, 0, 0, [1]), prefix_turn(0.5, 1999, 0, [1])]
    rows = prefix.rows_of("full speed", first, [prefix_turn(1.0, 1984, 1984, [2])])
    assert [row[-1] for row in rows] == ["equal", "equal", "DIFFERENT"]


def test_the_ratio_of_guessing_is_of_medians() -> None:
    assert speculation.ratio(task([4.0, 6.0, 90.0], [2.0, 3.0, 3.0])) == 2.0


def test_the_worst_task_of_a_kind_decides() -> None:
    tasks = [task([9.0], [10.0]), task([20.0], [10.0]), task([5.0], [10.0], "copying")]
    assert speculation.least_ratio(tasks, "prose") == 0.9


def test_other_ids_with_guesses_are_told_of() -> None:
    changed = task([4.0], [2.0]) | {"off": [turn(2.0, [1, 3])]}
    assert speculation.rows("resident", [changed])[0][-1] == "DIFFERENT"


def test_a_turn_of_fewer_tokens_is_compared_as_far_as_it_goes() -> None:
    assert speculation.has_equal_ids(task([4.0], [2.0]) | {"off": [turn(2.0, [1])]})


def test_a_draft_model_is_also_compared_with_what_its_memory_would_pin() -> None:
    rows = drafting.rows("200 MB/s", [task([6.0], [2.0])], [{"on": [], "off": [turn(4.0, [1, 2])]}])
    assert rows[0][-5:] == ["2.00", "3.00", "equal", "4.00", "1.50"]


def test_other_ids_without_a_draft_model_are_told_of() -> None:
    rows = drafting.rows("200 MB/s", [task([6.0], [2.0])], [{"on": [], "off": [turn(4.0, [7])]}])
    assert rows[0][-3] == "DIFFERENT"


def test_growth_is_counted_from_the_early_reading() -> None:
    readings = [
        {"anonymous_bytes": int(n * 1e6), "kv_bytes": 0, "threads": 7, "descriptors": n_files}
        for n, n_files in ((100, 5), (120, 6), (121, 8))
    ]
    assert churn.rows(readings, 200)[-1] == ["grown since", "+1.00", "+0.00", "+0", "+2"]


@pytest.mark.parametrize(("value", "word"), [(6.0, "reached"), (5.99, "MISSED")])
def test_a_target_is_reached_from_its_value_on(value: float, word: str) -> None:
    assert verdict(value, 6.0) == f"{word} (wanted 6)"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert "| a/b | c |" in Table("t", ("x", "y"), [["a|b", "c"]]).markdown().splitlines()


def test_the_machine_is_told_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU\n")
    (tmp_path / "meminfo").write_text("MemTotal:       8388608 kB\n")
    assert machine_line(tmp_path).startswith("Some CPU, ")
    assert ", 8 GiB, " in machine_line(tmp_path)


def test_the_pair_of_models_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--target FILE and --draft FILE"):
        main(["--case", "draft", "--work", str(tmp_path)])


def test_a_job_is_one_line() -> None:
    text = Job("gap", Path("m\n.gguf"), 7).to_json()
    assert "\n" not in text
    assert json.loads(text)["settings"] == {}
