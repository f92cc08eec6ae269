"""Promise 1: a pass serves all its rows, and reads exactly the plan's unpinned bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.daemons import running_daemon
from tests.acceptance.engines import ask, ask_together, layout_bytes, running_engine, settings, smallest_layout
from tests.acceptance.prompts import Prompts

EMBEDDING_ROW_BYTES = 576 // 32 * 34  # SmolLM2's embedding is Q8_0
BLOCK_BYTES = 4096
SLOW = pytest.mark.slow


def test_one_pass_of_the_plan_holds_every_weight_of_the_file(smollm2: Path) -> None:
    # the file is its header and its weights; norms are read once, at the start
    layout = smallest_layout(settings(smollm2))
    assert smollm2.stat().st_size - layout.plan.pass_bytes - layout.small_tensor_bytes < 0.03 * smollm2.stat().st_size


@pytest.mark.parametrize("n_prompt", [32, 128, pytest.param(512, marks=SLOW), pytest.param(2048, marks=SLOW)])
def test_a_prompt_costs_one_pass_of_the_plan(smollm2: Path, prompts: Prompts, figure: Figure, n_prompt: int) -> None:
    config = settings(smollm2, pin=False, max_requests=1, rows_per_pass=n_prompt, context=n_prompt + 64)
    with running_engine(config) as engine:
        usage = ask(engine, prompts.long(n_prompt), 1).outcome.usage
        plan_bytes = engine.status().plan_bytes
    assert usage.prefill_passes == usage.passes == 1
    assert usage.streamed_bytes - usage.embedding_bytes == plan_bytes
    assert 0 < usage.embedding_bytes <= n_prompt * EMBEDDING_ROW_BYTES
    figure(
        f"prefill of {n_prompt:>5} in one pass:    {usage.passes:>5} passes, plan {plan_bytes}, weights streamed "
        f"{usage.streamed_bytes - usage.embedding_bytes}, of these head {usage.head_bytes}, embedding rows apart "
        f"{usage.embedding_bytes}"
    )


@pytest.mark.parametrize("n_prompt", [32, pytest.param(128, marks=SLOW), pytest.param(512, marks=SLOW)])
def test_the_per_token_path_costs_as_many_passes_as_the_prompt_has_tokens(
    smollm2: Path, prompts: Prompts, figure: Figure, n_prompt: int
) -> None:
    config = settings(smollm2, pin=False, max_requests=1, rows_per_pass=1, context=n_prompt + 64)
    with running_engine(config) as engine:
        usage = ask(engine, prompts.long(n_prompt), 1).outcome.usage
        plan_bytes = engine.status().plan_bytes
    streamed = usage.streamed_bytes - usage.embedding_bytes
    assert usage.prefill_passes == usage.passes == n_prompt
    # an inner pass has no row whose logits anyone wants: it leaves out the head
    assert streamed == n_prompt * (plan_bytes - usage.head_bytes) + usage.head_bytes
    figure(
        f"prefill of {n_prompt:>5} token by token: {usage.passes:>5} passes, plan {plan_bytes}, weights streamed "
        f"{streamed}, of these head {usage.head_bytes}: {streamed / plan_bytes:.1f} x one pass"
    )


def test_six_requests_at_once_stream_little_more_than_the_longest_alone(
    smollm2: Path, prompts: Prompts, figure: Figure
) -> None:
    lengths = [(120, 24), (15, 20), (60, 10), (33, 16), (200, 6), (7, 12)]
    work = [(prompts.long(n_prompt), n_tokens) for n_prompt, n_tokens in lengths]
    with running_engine(settings(smollm2, pin=False)) as engine:
        alone = max(ask(engine, *each).outcome.usage.streamed_bytes for each in work)
        before = engine.status().streamed_bytes_total
        ask_together(engine, work)
        together = engine.status().streamed_bytes_total - before
    figure(f"6 requests together: {together} bytes, the longest alone {alone}: {together / alone:.3f} x")
    assert together <= 1.25 * alone


def test_a_second_pass_reads_nothing_when_the_budget_holds_the_model(smollm2: Path, prompts: Prompts) -> None:
    with running_engine(settings(smollm2)) as engine:
        ask(engine, prompts.long(40), 2)
        usage = ask(engine, prompts.long(40), 4).outcome.usage
    assert usage.streamed_bytes == 0


def test_streamed_bytes_fall_by_exactly_what_is_pinned(smollm2: Path, prompts: Prompts) -> None:
    layout = smallest_layout(settings(smollm2))
    with running_engine(settings(smollm2), layout_bytes(layout) + layout.plan.pass_bytes // 2) as engine:
        ask(engine, prompts.long(40), 1)
        usage = ask(engine, prompts.long(40), 1).outcome.usage
        status = engine.status()
    assert status.pinned_bytes > 0
    assert usage.streamed_bytes - usage.embedding_bytes == layout.plan.pass_bytes - status.pinned_bytes


@pytest.mark.parametrize(("n_prompt", "n_tokens"), [(16, 24), (512, 1)])
def test_the_kernel_counts_the_device_bytes_that_the_daemon_tells(
    smollm2: Path, prompts: Prompts, figure: Figure, n_prompt: int, n_tokens: int
) -> None:
    with running_daemon(
        smollm2, "--direct-io", "on", "--pin", "off", "--context", "1024", "--budget", "400M"
    ) as daemon:
        daemon.ask(prompts.long(8), 1)
        before, kernel_before = daemon.settled_status().totals, daemon.proc_kib("io", "read_bytes")
        daemon.ask(prompts.long(n_prompt), n_tokens)
        after, kernel_after = daemon.settled_status().totals, daemon.proc_kib("io", "read_bytes")
    kernel = kernel_after - kernel_before
    told = after.device_bytes - before.device_bytes
    planned = after.streamed_bytes - before.streamed_bytes
    figure(
        f"device bytes, {n_prompt} prompt tokens and {n_tokens} more: kernel {kernel}, told {told}, plan {planned}; "
        f"kernel/told {kernel / told:.4f}, kernel/plan {kernel / planned:.4f}"
    )
    assert abs(kernel / told - 1) < 0.01
    # an embedding row is a whole block or two for the device
    assert planned <= told <= 1.01 * planned + 2 * BLOCK_BYTES * (n_prompt + n_tokens)
