"""Promise 7: work that nobody wants any more stops within a block, and so do its reads."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from sipd.engine.loop import Engine
from sipd.engine.request import FinishReason
from tests.acceptance.conftest import Figure
from tests.acceptance.daemons import read_reply, request_for, running_daemon
from tests.acceptance.engines import ask, running_engine, settings, smallest_layout, submit
from tests.acceptance.prompts import Prompts

N_BLOCKS = 30


def wait_for_layer(engine: Engine, first_layer: int) -> None:
    """Returns when the pass under way has reached a layer."""
    pause = threading.Event()
    for _ in range(60_000):
        if engine._executor.control.layer >= first_layer:
            return
        pause.wait(0.001)
    pytest.fail("no pass came that far")


def test_a_cancel_in_prefill_ends_within_a_block(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    config = settings(smollm2, pin=False, max_requests=1, rows_per_pass=1500, context=2048)
    layout = smallest_layout(config, 1 << 30)
    block_bytes = layout.plan.pass_bytes // N_BLOCKS
    with running_engine(config, 1 << 30) as engine:
        request, sink = submit(engine, prompts.long(1500), 4)
        wait_for_layer(engine, 3)
        layer, n_read = engine._executor.control.layer, engine._executor.counters().plan_bytes
        engine.cancel(request)
        outcome = sink.wait()
        last_layer = engine._executor.control.layer
        n_read_at_end = engine._executor.counters().plan_bytes
        assert ask(engine, prompts.long(9), 3).outcome.usage.passes == 3
    figure(
        f"cancel in layer {layer}: seen in layer {last_layer}, {outcome.usage.streamed_bytes} bytes streamed of "
        f"{layout.plan.pass_bytes}, {n_read_at_end - n_read} read after it; ring {layout.stream.ring_bytes}"
    )
    assert outcome.reason is FinishReason.CANCELLED
    assert last_layer - layer <= 1
    assert n_read_at_end - n_read <= 2 * block_bytes + 2 * layout.stream.ring_bytes
    assert outcome.usage.streamed_bytes < (layer + 2) * block_bytes


def test_reads_stop_after_a_call_was_cancelled(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    with running_daemon(smollm2, "--pin", "off", "--budget", "200M", "--context", "1024") as daemon:
        call = daemon.start(request_for(prompts.long(8), 900))
        for response in call:
            if response.HasField("token"):
                break
        before = daemon.status()
        call.cancel()
        after = daemon.settled_status()
        n_passes = after.totals.passes - before.totals.passes
        figure(
            f"cancelled call: {n_passes} more passes began, "
            f"{after.totals.streamed_bytes - before.totals.streamed_bytes} bytes streamed after the status before it"
        )
        daemon.wait_for_line("request .*finish_reason=cancelled")
        again = daemon.settled_status()
        assert again.totals.device_bytes == after.totals.device_bytes
        assert again.memory.kv_used_bytes == 0
        assert n_passes < 30  # of some 890 that were left


def test_a_neighbour_does_not_notice_a_cancel(smollm2: Path, prompts: Prompts) -> None:
    with running_engine(settings(smollm2)) as engine:
        wanted = ask(engine, prompts.long(30), 40).ids
        _, kept = submit(engine, prompts.long(30), 40)
        dropped, sink = submit(engine, prompts.long(50), 40)
        assert sink.has_started.wait(60.0)
        engine.cancel(dropped)
        assert sink.wait().reason is FinishReason.CANCELLED
        kept.wait()
    assert kept.ids == wanted


def test_a_deadline_in_prefill_ends_the_request_and_nothing_else(smollm2: Path, prompts: Prompts) -> None:
    with running_daemon(
        smollm2, "--pin", "off", "--budget", "400M", "--context", "2048", "--threads", "1", isa="portable"
    ) as daemon:
        request = request_for(prompts.long(600), 4)
        request.request_id = "late"
        with pytest.raises(grpc.RpcError) as error:
            read_reply(daemon.start(request, timeout_s=0.7))
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert daemon.record("late")["finish_reason"] == "deadline"
        assert int(daemon.record("late")["streamed_bytes"]) < 96_436_224
        assert len(daemon.ask(prompts.long(5), 3).ids) == 3
