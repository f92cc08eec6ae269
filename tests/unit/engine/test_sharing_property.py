"""Whatever shares an engine with a request, came before it or is guessed for it, its text is the one it has alone.

A random schedule of arrivals, cancels, slow readers, sessions, cache states, restarts and drafts on real kernels and a
tiny model; every text is compared with the same request alone on an engine that keeps and guesses nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.engine.request import FinishReason, Priority, Request
from sipd.engine.sampling import SamplingOptions
from sipd.memory import Ledger
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.engines import STREAMED, Listener, ask, running

VOCAB = 40  # of the prompts: few tokens, so that n-grams repeat and heads are common
HEADS = (tuple(i % 7 for i in range(70)), tuple(range(33)), tuple(5 * i % 40 for i in range(96)), ())
KEEPING = replace(
    STREAMED,
    prefix_cache=True,
    speculation=True,
    draft_tokens=5,
    max_sessions=2,
    snapshot_min_tokens=32,
    max_queued=100,
)
# The least that serves one request of 256 tokens, and a few pages more: pages are given up all the time
N_BYTES = 700_000


@pytest.fixture(scope="module", autouse=True)
def _model(tmp_path_factory: pytest.TempPathFactory) -> None:
    Schedule.model = build_gguf(tmp_path_factory.mktemp("sharing") / "m.gguf", quant=QuantType.Q8_0)


@pytest.fixture(autouse=True)
def _stuck_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is behind yields to whoever waits, without the seconds that it otherwise has."""
    monkeypatch.setattr("sipd.engine.unwanted.STUCK_S", -1.0)


@cache
def alone(model: Path, prompt: tuple[int, ...], max_tokens: int, options: SamplingOptions) -> tuple[int, ...]:
    with running(model) as engine:
        return tuple(ask(engine, prompt, max_tokens, options)[0])


@dataclass(eq=False)
class Sent:
    """One request under way, as its client sees it."""

    request: Request
    listener: Listener
    is_slow: bool = False
    is_cancelled: bool = False
    unread: int = field(default=0)


class Schedule(RuleBasedStateMachine):
    """One engine that keeps and guesses, and everything that was sent to it."""

    model: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.engine = self._start()
        self.sent: list[Sent] = []

    def _start(self) -> Engine:
        config = replace(KEEPING, model=self.model, snapshot_dir=Path(self.folder.name))
        return build_engine(config, open_checkpoint(self.model), Ledger(N_BYTES, 0, 0))

    @rule(
        head=st.sampled_from(HEADS),
        rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
        max_tokens=st.integers(1, 24),
        temperature=st.sampled_from((0.0, 0.0, 0.9)),
        penalty=st.sampled_from((1.0, 1.3)),
        client=st.sampled_from("ab"),
        session=st.sampled_from(("", "", "s", "t", "u")),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    )
    def send(  # noqa: PLR0917 - the parts of a request
        self,
        head: tuple[int, ...],
        rest: list[int],
        max_tokens: int,
        temperature: float,
        penalty: float,
        client: str,
        session: str,
        flags: tuple[bool, bool, bool, bool],
    ) -> None:
        self._send((*head, *rest), max_tokens, temperature, penalty, client, session, flags)

    def _send(  # noqa: PLR0917 - the parts of a request
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        temperature: float,
        penalty: float,
        client: str,
        session: str,
        flags: tuple[bool, bool, bool, bool],
    ) -> None:
        options = SamplingOptions(temperature=temperature, repetition_penalty=penalty, seed=len(prompt))
        listener = Listener()
        request = Request("r", prompt, max_tokens, options, listener)
        sent = Sent(request, listener, is_slow=flags[0])
        request.is_reader_behind = lambda: sent.is_slow and len(listener.ids) > 2
        request.client, request.session = client, session
        request.uses_prefix_cache, request.speculates = flags[1] or flags[0], flags[2] or flags[0]
        request.priority = Priority.BACKGROUND if flags[3] else Priority.INTERACTIVE
        self.engine.submit(request)
        self.sent.append(sent)

    @precondition(lambda self: len(self.sent) < 20)
    @rule(head=st.sampled_from(HEADS), is_slow=st.booleans(), more=st.integers(1, 3))
    def arrive_while_others_are_stuck_or_in_the_background(
        self, head: tuple[int, ...], is_slow: bool, more: int
    ) -> None:
        first = len(self.sent)
        for number in range(4):
            self._send((*head, number), 24, 0.0, 1.0, "a", "", (is_slow, True, False, not is_slow))
        deadline = time.monotonic() + 1.0
        while len(self.sent[first].listener.ids) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        for number in range(more):
            self._send((*head, 9, number), 4, 0.0, 1.0, "b", "", (False, True, False, False))

    @precondition(lambda self: self.sent)
    @rule(rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), data=st.data())
    def next_turn(self, rest: list[int], data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.sent))
        self._check(sent)
        request = sent.request
        prompt = (*request.prompt_ids, *request.output_ids, *rest)[:200]
        self._send(prompt, 12, 0.0, 1.0, request.client, request.session, (False, True, True, False))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.sent))
        sent.is_cancelled = True
        self.engine.cancel(sent.request)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def wait_for_one(self, data: st.DataObject) -> None:
        self._check(data.draw(st.sampled_from(self.sent)))

    @rule()
    def readers_catch_up(self) -> None:
        for sent in self.sent:
            sent.is_slow = False

    @rule()
    def file_changed(self) -> None:
        """Everything that is kept is forgotten; the engine thread does it itself, so only while nobody runs."""
        for sent in list(self.sent):
            self._check(sent)
        assert self.engine._keeper.reuse.cache is not None
        self.engine._keeper.reuse.cache.clear()

    def _check(self, sent: Sent) -> None:
        for each in self.sent:
            each.is_slow = False
        outcome = sent.listener.wait()
        sent.listener.outcomes.put(outcome)
        request = sent.request
        wanted = alone(self.model, tuple(request.prompt_ids), request.max_tokens, request.sampling)
        if sent.is_cancelled and outcome.reason is FinishReason.CANCELLED:
            assert tuple(sent.listener.ids) == wanted[: len(sent.listener.ids)]
        else:
            assert outcome.error is None
            assert tuple(sent.listener.ids) == wanted
        assert outcome.usage.accepted_tokens <= outcome.usage.drafted_tokens
        assert outcome.usage.cached_tokens < len(request.prompt_ids)

    @rule()
    def restart(self) -> None:
        """What was in memory is gone, what is on disk is not."""
        for sent in self.sent:
            self._check(sent)
        self.engine.stop()
        self.sent = []
        self.engine = self._start()

    def _wait_for_disk(self) -> None:
        """The engine looks at what the disk has done when it is woken; at the latest after its idle tick."""
        deadline = time.monotonic() + 20.0
        while self.engine._keeper.reuse.pool.n_promised and time.monotonic() < deadline:
            time.sleep(0.002)

    def teardown(self) -> None:
        try:
            for sent in self.sent:
                self._check(sent)
            pool, kept = self.engine._keeper.reuse.pool, self.engine._keeper.reuse.cache
            assert kept is not None
            self._wait_for_disk()
            assert pool.n_promised == 0
            assert pool.n_filled == kept.n_idle
        finally:
            self.engine.stop()
            self.folder.cleanup()


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a schedule shrinks badly: its timing is not its own
)
