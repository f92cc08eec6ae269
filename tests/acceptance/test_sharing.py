"""A real daemon that reuses and guesses: the text of every request is the one it has alone, at less cost."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import pytest

from sipd.server.tokens import token_line
from sipd.weights.tensor_table import QuantType
from tests.acceptance.conftest import Figure
from tests.acceptance.daemons import Call, Daemon, Reply, next_ids, read_reply, request_for, running_daemon
from tests.acceptance.prompts import Prompts
from tests.builders import build_gguf

HEAD = tuple(7 * i % 300 for i in range(200))
COPY = """<|im_start|>user
Repeat this list exactly, with Tuesday in place of Monday:
1. On Monday the red lorry carries forty boxes of apples from the old mill to the harbour.
2. The blue lorry waits at the bridge until the red lorry has come back from the harbour.
3. Both drivers write the number of boxes into the book that lies in the office of the mill.
<|im_end|>
<|im_start|>assistant
1. On Tuesday the red lorry"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: their text depends on every token before it."""
    folder = tmp_path_factory.mktemp("sharing")
    return build_gguf(folder / "tiny.gguf", context_length=2048, quant=QuantType.Q8_0)


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Iterator[Daemon]:
    """A daemon that keeps and guesses nothing."""
    with running_daemon(tiny, "--prefix-cache", "off", "--speculation", "off") as daemon:
        yield daemon


@pytest.fixture
def sharing(tiny: Path) -> Iterator[Daemon]:
    """A daemon as it is by default, with nothing kept yet."""
    with running_daemon(tiny) as daemon:
        yield daemon


def ask(daemon: Daemon, ids: Sequence[int], max_tokens: int = 12, **fields: str | bool) -> Reply:
    """The reply to one request with some of its fields set."""
    request = request_for(ids, max_tokens)
    for name, value in fields.items():
        setattr(request, name, value)
    return read_reply(daemon.start(request))


def test_a_prompt_asked_again_is_cached_and_says_the_same(plain: Daemon, sharing: Daemon) -> None:
    wanted = plain.ask(HEAD, 12)
    first, again = ask(sharing, HEAD), ask(sharing, HEAD)
    assert wanted.finished.usage.cached_tokens == first.finished.usage.cached_tokens == 0
    assert again.finished.usage.cached_tokens == len(HEAD) - 1
    assert first.ids == again.ids == wanted.ids
    assert first.text == again.text == wanted.text


def test_a_chat_of_ten_turns_computes_each_token_once(plain: Daemon, sharing: Daemon) -> None:
    said, n_computed = list(HEAD[:50]), 0
    for turn in range(10):
        reply = ask(sharing, said, session="kitchen", speculation=False)
        assert reply.ids == plain.ask(said, 12).ids
        usage = reply.finished.usage
        # all tokens of the reply but its last one are computed in passes of their own
        n_computed += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens - 1
        said += [*reply.ids, turn, turn + 20, turn + 40]
    assert n_computed == len(said) - 3 - 1
    assert sharing.status().prefix_cache.sessions == 1


def test_what_was_kept_on_disk_is_restored_after_a_restart(tiny: Path, plain: Daemon, tmp_path: Path) -> None:
    flags = ("--snapshot-dir", str(tmp_path), "--snapshot-min-tokens", "64")
    wanted = plain.ask(HEAD, 12)
    turn = (*HEAD[100:150], *wanted.ids)
    with running_daemon(tiny, *flags) as daemon:
        assert ask(daemon, HEAD).ids == wanted.ids
        reply = ask(daemon, turn, 40, session="hall")
    next_turn = (*turn, *reply.ids, 3, 4)
    with running_daemon(tiny, *flags) as daemon:
        again = ask(daemon, HEAD)
        assert again.finished.usage.restored_tokens >= len(HEAD) // 32 * 32
        assert (again.ids, again.text) == (wanted.ids, wanted.text)
        in_session = ask(daemon, next_turn, session="hall")
        assert in_session.finished.usage.restored_tokens == (len(next_turn) - 3) // 32 * 32  # whole pages
        assert in_session.ids == plain.ask(next_turn, 12).ids
        assert daemon.status().prefix_cache.restored_tokens == (
            again.finished.usage.restored_tokens + in_session.finished.usage.restored_tokens
        )


def test_a_damaged_snapshot_is_computed_instead(tiny: Path, plain: Daemon, tmp_path: Path) -> None:
    flags = ("--snapshot-dir", str(tmp_path), "--snapshot-min-tokens", "64")
    with running_daemon(tiny, *flags) as daemon:
        ask(daemon, HEAD)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with running_daemon(tiny, *flags) as daemon:
        reply = ask(daemon, HEAD)
        assert reply.ids == plain.ask(HEAD, 12).ids
        assert reply.finished.usage.restored_tokens < len(HEAD) // 32 * 32


def test_a_copying_task_takes_fewer_passes_with_drafts_and_says_the_same(
    smollm2: Path, prompts: Prompts, figure: Figure
) -> None:
    ids = prompts._encode(COPY)
    with running_daemon(smollm2, "--prefix-cache", "off") as daemon:
        drafted, alone = ask(daemon, ids, 48), ask(daemon, ids, 48, speculation=False)
        totals = daemon.status().speculation
    usage = drafted.finished.usage
    figure(
        f"copying 48 tokens: {drafted.finished.passes} passes with drafts ({usage.accepted_tokens} of "
        f"{usage.drafted_tokens} right), {alone.finished.passes} without"
    )
    assert (drafted.ids, drafted.text) == (alone.ids, alone.text)
    assert alone.finished.usage.drafted_tokens == 0
    assert drafted.finished.passes == alone.finished.passes - usage.accepted_tokens
    assert drafted.finished.passes <= alone.finished.passes / 2
    assert (totals.drafted_tokens, totals.accepted_tokens) == (usage.drafted_tokens, usage.accepted_tokens)


def test_a_request_that_switches_reuse_off_neither_takes_nor_leaves(sharing: Daemon) -> None:
    first = ask(sharing, HEAD, prefix_cache=False, session="none")
    assert sharing.status().prefix_cache.cached_bytes == 0
    assert sharing.status().prefix_cache.sessions == 0
    second = ask(sharing, HEAD)
    assert second.finished.usage.cached_tokens == 0
    third = ask(sharing, HEAD, prefix_cache=False)
    assert third.finished.usage.cached_tokens == 0
    assert first.ids == second.ids == third.ids


def test_another_clients_session_name_changes_no_text(tiny: Path, plain: Daemon, tmp_path: Path) -> None:
    tokens = {name: f"{name}-" + 40 * name[0] for name in ("kitchen", "phone")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{token_line(name, token)}\n" for name, token in tokens.items()))
    file.chmod(0o600)

    def turn(name: str, ids: Sequence[int]) -> Reply:
        request = request_for(ids, 12)
        request.session = "diary"
        metadata = (("authorization", f"Bearer {tokens[name]}"),)
        return read_reply(cast(Call, daemon.generation.Generate(request, timeout=60.0, metadata=metadata)))

    other = tuple(11 * i % 290 + 1 for i in range(90))
    with running_daemon(tiny, "--token-file", str(file)) as daemon:
        mine = turn("kitchen", HEAD)
        theirs = turn("phone", other)
        again = turn("kitchen", (*HEAD, *mine.ids, 5))
        assert theirs.finished.usage.cached_tokens == 0
        assert again.finished.usage.cached_tokens == len(HEAD) + 11
    assert mine.ids == plain.ask(HEAD, 12).ids
    assert theirs.ids == plain.ask(other, 12).ids
    assert again.ids == plain.ask((*HEAD, *mine.ids, 5), 12).ids


def test_a_hundred_requests_at_once_run_wait_or_are_refused_at_once(sharing: Daemon, figure: Figure) -> None:
    def one(index: int) -> str:
        call = sharing.start(request_for([*HEAD[:40], index], 30))
        try:
            position = next(iter(call)).accepted.queue_position
            assert len(read_reply(call).ids) == 30
        except grpc.RpcError as error:
            return cast(grpc.Call, error).code().name
        return "waited" if position else "ran"

    with ThreadPoolExecutor(100) as pool:
        seen = Counter(pool.map(one, range(100)))
    figure(f"100 requests at once: {dict(seen)}")
    assert set(seen) <= {"ran", "waited", "RESOURCE_EXHAUSTED"}
    assert seen["waited"] >= 1
    assert seen["ran"] + seen["waited"] >= 8 + 32, "as many as run and wait by default"
    assert len(ask(sharing, HEAD).ids) == 12


def test_a_changed_model_file_leaves_nothing_in_the_cache(plain: Daemon, tmp_path: Path) -> None:
    model = build_gguf(tmp_path / "m.gguf", context_length=2048, quant=QuantType.Q8_0)
    times = (model.stat().st_atime_ns, model.stat().st_mtime_ns)
    with running_daemon(model, "--pin", "off") as daemon:
        wanted = ask(daemon, HEAD).ids
        assert daemon.status().prefix_cache.cached_bytes > 0
        os.utime(model, ns=(times[0], times[1] + 1))
        with pytest.raises(grpc.RpcError) as error:
            ask(daemon, HEAD)
        assert error.value.code() is grpc.StatusCode.DATA_LOSS
        assert daemon.status().prefix_cache.cached_bytes == 0
        os.utime(model, ns=times)
        reply = ask(daemon, HEAD)
        assert reply.finished.usage.cached_tokens == 0
        assert reply.ids == wanted == plain.ask(HEAD, 12).ids


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process takes of the machine."""

    anonymous_kib: int
    n_threads: int
    n_files: int


def footprint(daemon: Daemon) -> Footprint:
    folder = Path(f"/proc/{daemon.process.pid}")
    n_files = len(list((folder / "fd").iterdir()))
    return Footprint(daemon.proc_kib("smaps_rollup", "Anonymous"), len(list((folder / "task").iterdir())), n_files)


@pytest.mark.slow
def test_two_thousand_requests_leave_nothing_behind(tiny: Path, tmp_path: Path, figure: Figure) -> None:
    chance = random.Random(4)
    flags = ("--snapshot-dir", str(tmp_path), "--snapshot-min-tokens", "64", "--snapshot-bytes", "4M")
    cancelled = set(chance.sample(range(2000), 200))
    with running_daemon(
        tiny, *flags, "--budget", "64M", "--context", "512", "--max-requests-per-client", "40"
    ) as daemon:

        def one(index: int) -> None:
            start = index * 37 % 1000
            head = HEAD[:100] if index % 3 else tuple((start + i * i) % 300 for i in range(100))
            request = request_for([*head, index % 300, index // 300], 8)
            if index % 5 == 0:
                request.session = f"s{index % 60}"
            call = daemon.start(request)
            if index not in cancelled:
                assert len(read_reply(call).ids) == 8
                return
            if index % 2:
                next_ids(call)
            call.cancel()

        seen = []
        with ThreadPoolExecutor(4) as pool:
            for first in range(0, 2000, 200):
                list(pool.map(one, range(first, first + 200)))
                daemon.settled_status()
                seen.append(footprint(daemon))
        status = daemon.settled_status()
    figure(f"2,000 requests, 200 cancelled: after 200 {seen[0]}, at the end {seen[-1]}")
    figure("anonymous KiB after each 200: " + " ".join(str(each.anonymous_kib) for each in seen))
    assert status.memory.kv_used_bytes == 0
    assert status.queue.active == status.queue.queued == 0
    assert seen[-1].n_threads <= seen[0].n_threads
    assert seen[-1].n_files <= seen[0].n_files
    assert seen[-1].anonymous_kib <= seen[0].anonymous_kib + 2048
