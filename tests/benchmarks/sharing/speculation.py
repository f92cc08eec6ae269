"""Guessing on and off by turns in one engine: tokens a pass and tokens a second; the ids must not differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.sharing.asking import middle, send, warm_up
from tests.benchmarks.sharing.bench import Bench
from tests.benchmarks.sharing.prompts import Task


def measure(bench: Bench, given: dict[str, Any]) -> dict[str, Any]:
    """For each task the turns on and off, A B A B; rates count tokens after the first."""
    text = bench.text
    assert text is not None, "wanted a model with a tokenizer"
    first = True
    found = []
    for task in given["tasks"]:
        ids = text.encode_chat([("user", task["request"])])
        if first:
            warm_up(bench.engine, ids, 3)
            first = False
        turns: dict[str, list[dict[str, Any]]] = {"on": [], "off": []}
        for _ in range(int(given["repetitions"])):
            for name in given["modes"]:
                turns[name].append(_turn(bench, ids, int(given["modes"][name]), speculates=name == "on"))
        reply = text.decode(next(turn["ids"] for each in turns.values() for turn in each))
        found.append({"name": task["name"], "kind": task["kind"], "prompt_tokens": len(ids), "reply": reply} | turns)
    return {"tasks": found}


def _turn(bench: Bench, ids: Sequence[int], n_tokens: int, *, speculates: bool) -> dict[str, Any]:
    assert bench.text is not None
    _, watch = send(bench.engine, ids, n_tokens, "client", speculates=speculates, end_ids=bench.text.end_ids)
    usage = watch.wait().usage
    return {
        "ids": watch.ids,
        "tokens_per_s": watch.decode_tokens_per_s,
        "tokens_per_pass": (usage.completion_tokens - 1) / max(1, usage.passes - usage.prefill_passes),
        "drafted": usage.drafted_tokens,
        "accepted": usage.accepted_tokens,
    }


def given(tasks: Sequence[Task], modes: Mapping[str, int], repetitions: int) -> dict[str, Any]:
    """What `measure` takes; `modes` maps "on" and "off" to tokens."""
    return {"tasks": [asdict(task) for task in tasks], "modes": dict(modes), "repetitions": repetitions}


HEADER = ("weights", "task", "tokens", "tokens a pass", "accepted/drafted", "tokens/s on", "off", "ratio", "ids")


def rows(place: str, tasks: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row for each task: medians."""
    return [
        [
            place,
            f"{task['kind']}: {task['name']}",
            str(len(task["on"][0]["ids"])),
            f"{middle([turn['tokens_per_pass'] for turn in task['on']]):.2f}",
            f"{task['on'][-1]['accepted']}/{task['on'][-1]['drafted']}",
            f"{rate(task, 'on'):.2f}",
            f"{rate(task, 'off'):.2f}",
            f"{ratio(task):.2f}",
            "equal" if has_equal_ids(task) else "DIFFERENT",
        ]
        for task in tasks
    ]


def rate(task: dict[str, Any], mode: str) -> float:
    """Median tokens a second."""
    return middle([turn["tokens_per_s"] for turn in task[mode]])


def ratio(task: dict[str, Any]) -> float:
    """On over off; 0 where either is missing."""
    off = rate(task, "off")
    return rate(task, "on") / off if off else 0.0


def has_equal_ids(task: dict[str, Any]) -> bool:
    """Whether every turn gave the same tokens; a turn that was given fewer, the first ones of them."""
    ids = [turn["ids"] for mode in ("on", "off") for turn in task[mode]]
    longest = max(ids, key=len)
    return all(each and each == longest[: len(each)] for each in ids)


def least_ratio(tasks: Sequence[dict[str, Any]], kind: str) -> float:
    """The worst ratio of a kind of task; 0 when there is none."""
    return min((ratio(task) for task in tasks if task["kind"] == kind), default=0.0)
