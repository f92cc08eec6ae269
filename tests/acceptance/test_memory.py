"""Promise 3: the daemon's anonymous memory stays below its budget, and more budget never means more bytes a pass."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sipd.size import parse_size
from tests.acceptance.conftest import Figure
from tests.acceptance.daemons import REPOSITORY, AnonymousSampler, read_reply, request_for, running_daemon
from tests.acceptance.prompts import Prompts

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Use:
    """What a budget gave."""

    budget_bytes: int
    peak_bytes: int
    idle_bytes: int
    pass_bytes: int
    context_tokens: int
    n_positions: int


def refusal(model: Path, budget: str) -> str:
    """Returns the last line of a daemon that does not start with this budget; empty when it starts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sipd", "serve", "--model", model, "--listen", "127.0.0.1:0", "--budget", budget],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line
            if " serving " in line:
                process.terminate()
                last = ""
                break
        process.stderr.read()
    assert process.returncode == (78 if last else 0)
    return last


def named_budget(message: str) -> str:
    """Returns the budget that a refusal asks for."""
    found = re.search(r"wanted --budget (\S+) or more", message)
    assert found is not None, message
    return found[1]


def least_budget(model: Path, first: str = "16M") -> int:
    """Returns the budget that the daemon names and then starts with."""
    budget = first
    for _ in range(4):
        if not (message := refusal(model, budget)):
            return parse_size(budget)
        budget = named_budget(message)
    pytest.fail(f"no budget that the daemon named was enough, the last: {budget}")


def use_of(model: Path, prompts: Prompts, budget_bytes: int) -> Use:
    """Runs a daemon with this budget, fills all KV pages that it granted, and reports."""
    with running_daemon(model, "--budget", str(budget_bytes)) as daemon:
        idle = daemon.proc_kib("smaps_rollup", "Anonymous") * 1024
        with AnonymousSampler(daemon) as sampler:
            context = daemon.context_tokens()
            n_at_once = max(1, min(8, daemon.status().memory.kv_granted_bytes // kv_bytes(context)))
            lengths = range(4, 4 + n_at_once)
            calls = [daemon.start(request_for(prompts.long(context - length), length)) for length in lengths]
            replies = [read_reply(call) for call in calls]
            n_positions = sum(reply.finished.usage.prompt_tokens + len(reply.ids) for reply in replies)
        status = daemon.status()
    return Use(budget_bytes, sampler.peak_bytes, idle, status.storage.pass_bytes, context, n_positions)


def kv_bytes(n_positions: int) -> int:
    """Returns bytes of SmolLM2's keys and values: 30 blocks, 3 heads of 64, binary16, in pages of 32."""
    return -(-n_positions // 32) * 32 * 30 * 2 * 3 * 64 * 2


def check(uses: list[Use], figure: Figure) -> None:
    """Asserts the promise and tells the figures."""
    for use in uses:
        figure(
            f"budget {use.budget_bytes / MIB:6.1f} MiB: anonymous peak {use.peak_bytes / MIB:6.1f}, idle "
            f"{use.idle_bytes / MIB:5.1f} MiB; streamed a pass {use.pass_bytes:>9}; context {use.context_tokens}, "
            f"positions computed at once {use.n_positions}"
        )
    assert [use for use in uses if use.peak_bytes > use.budget_bytes] == []
    pass_bytes = [use.pass_bytes for use in uses]
    assert pass_bytes == sorted(pass_bytes, reverse=True)


def test_memory_stays_below_a_minimal_and_a_large_budget(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    least = least_budget(smollm2)
    figure(f"least budget that the daemon names: {least} ({least / MIB:.1f} MiB)")
    check([use_of(smollm2, prompts, n_bytes) for n_bytes in (least, 160 * MIB)], figure)


def test_a_refusal_names_a_budget_that_fits(smollm2: Path) -> None:
    budget = named_budget(refusal(smollm2, "16M"))
    assert refusal(smollm2, budget) == ""


@pytest.mark.slow
def test_memory_stays_below_every_budget_of_a_sweep(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    least = least_budget(smollm2)
    budgets = [least, *(n * MIB for n in (72, 88, 112, 136, 160, 200, 256, 400))]
    check([use_of(smollm2, prompts, n_bytes) for n_bytes in budgets], figure)
