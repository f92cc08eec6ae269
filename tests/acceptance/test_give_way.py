"""A background request gives way to an interactive one while it runs, and its text is the same as alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sipd.v1 import generation_pb2 as pb
from sipd.weights.tensor_table import QuantType
from tests.acceptance.daemons import next_ids, read_reply, request_for, running_daemon
from tests.builders import build_gguf

PROMPT = tuple(range(5, 45))
N_LONG = 400
SAMPLINGS = [pb.Sampling(temperature=0.0), pb.Sampling(temperature=1.0, seed=7, repetition_penalty=1.1)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("flags", [(), ("--prefix-cache", "off")], ids=["cache", "no cache"])
def test_a_background_reply_that_gave_way_twice_is_the_one_it_gives_alone(
    tmp_path: Path, flags: tuple[str, ...], sampling: pb.Sampling
) -> None:
    model = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, d_model=256, d_ff=512, n_layers=4, vocab_size=300)
    long = request_for(PROMPT, N_LONG, sampling)
    quick = request_for(PROMPT[::-1], 4, sampling)
    with running_daemon(model, "--max-requests", "1", "--context", "512", *flags) as daemon:
        wanted, wanted_quick = read_reply(daemon.start(long)), read_reply(daemon.start(quick))
    with running_daemon(model, "--max-requests", "1", "--context", "512", *flags) as daemon:
        long.priority = pb.PRIORITY_BACKGROUND
        running = daemon.start(long)
        ids = next_ids(running)
        for _ in range(2):
            reply = read_reply(daemon.start(quick))
            assert reply.ids == wanted_quick.ids
            queue = daemon.status().queue
            assert queue.active + queue.queued == 1, "the long one is not done"
            ids += next_ids(running)
        rest = read_reply(running)
        assert ids + rest.ids == wanted.ids
        usage = rest.finished.usage
        assert (usage.cached_tokens, usage.completion_tokens) == (0, N_LONG)
