"""The command sipc."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo

from sipd_client import cli
from sipd_client.v1.generation_pb2 import GenerateRequest, GenerateResponse, Priority, Stop
from tests.unit.clients.fake_server import WAIT_S, Fake, fail, token


def sipc(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sipd_client.cli", *arguments]


def sent(fake: Fake) -> GenerateRequest:
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    return request


def test_text_is_written_exactly(fake: Fake) -> None:
    done = subprocess.run(sipc("generate", "--target", fake.target, "hi"), capture_output=True, check=True)
    assert done.stdout.decode() == " Grüße 🌿\n"
    assert done.stderr == b""


def test_text_is_written_as_utf_8_in_any_locale(fake: Fake) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        sipc("generate", "--target", fake.target, "hi"), capture_output=True, check=True, env=environment
    )
    assert done.stdout.decode() == " Grüße 🌿\n"


def test_text_is_written_as_it_comes(fake: Fake) -> None:
    fake.script = fake.hang
    with subprocess.Popen(sipc("generate", "--target", fake.target, "hi"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"first"
        assert process.poll() is None
        fake.release.set()


def test_interrupting_cancels_the_request(fake: Fake) -> None:
    fake.script = fake.hang
    with subprocess.Popen(sipc("generate", "--target", fake.target, "hi"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
    assert fake.ended.wait(WAIT_S)


def test_a_reader_that_goes_away_ends_the_request_quietly(fake: Fake) -> None:
    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        while context.is_active():
            yield token("x" * 10_000)

    fake.script = script
    with subprocess.Popen(
        sipc("generate", "--target", fake.target, "hi"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_S) == 141
    assert fake.ended.wait(WAIT_S)


def test_json_gives_one_event_a_line(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--target", fake.target, "--json", "hi"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(line)) for line in lines] == ["accepted", "progress", "token", "token", "finished"]
    assert lines[2] == {"token": {"text": " Grüße", "ids": [1, 2], "logprobs": []}}
    assert lines[4]["finished"]["streamed_bytes"] == 2**53 + 1
    assert lines[4]["finished"]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "cached_tokens": 2,
        "restored_tokens": 1,
        "drafted_tokens": 6,
        "accepted_tokens": 5,
    }
    assert lines[4]["finished"]["reason"] == "FINISH_REASON_STOP"


def test_options_reach_the_request(fake: Fake) -> None:
    flags = ["--max-tokens", "7", "--temperature", "0.5", "--seed", "0", "--stop", "a", "--stop", "b", "--top-k", "3"]
    assert cli.main(["generate", "--target", fake.target, *flags, "hi"]) == 0
    request = sent(fake)
    assert (request.prompt, request.stop.max_tokens, list(request.stop.strings)) == ("hi", 7, ["a", "b"])
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert request.sampling.HasField("seed")
    assert not request.sampling.HasField("top_p")
    assert not request.HasField("parse_special_tokens")


def test_sharing_options_reach_the_request(fake: Fake) -> None:
    flags = ["--session", "kitchen", "--priority", "background", "--no-speculation", "--no-prefix-cache"]
    assert cli.main(["generate", "--target", fake.target, *flags, "hi"]) == 0
    assert sent(fake) == GenerateRequest(
        prompt="hi",
        stop=Stop(),
        session="kitchen",
        priority=Priority.PRIORITY_BACKGROUND,
        speculation=False,
        prefix_cache=False,
    )


def test_sharing_options_that_are_not_given_stay_unset(fake: Fake) -> None:
    assert cli.main(["generate", "--target", fake.target, "hi"]) == 0
    for name in ("session", "priority", "speculation", "prefix_cache"):
        assert not sent(fake).HasField(name)


def test_stats_tell_the_cost_on_standard_error(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--target", fake.target, "--stats", "hi"]) == 0
    told = capsys.readouterr()
    assert told.out == " Grüße 🌿\n"
    assert told.err.splitlines()[:3] == [
        "tokens   3 prompt, 4 completion; ended by stop",
        "reused   2 of the prompt, 1 of them from disk",
        "drafts   5 of 6 were right",
    ]


def test_chat_sends_the_prompt_as_a_users_message(fake: Fake) -> None:
    assert cli.main(["generate", "--target", fake.target, "--chat", "--system", "be brief", "hi"]) == 0
    messages = [(message.role, message.content) for message in sent(fake).chat.messages]
    assert messages == [("system", "be brief"), ("user", "hi")]


def test_a_prompt_of_token_ids_is_sent_as_such(fake: Fake) -> None:
    assert cli.main(["generate", "--target", fake.target, "--token-ids", "1, 22 333"]) == 0
    assert list(sent(fake).token_ids.ids) == [1, 22, 333]


def test_a_dash_reads_standard_input(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwei\nZeilen é\n".encode())))
    assert cli.main(["generate", "--target", fake.target, "-"]) == 0
    assert sent(fake).prompt == "zwei\nZeilen é\n"


def test_the_target_may_stand_in_the_environment(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIPD_TARGET", fake.target)
    assert cli.main(["generate", "hi"]) == 0


def test_an_error_is_one_line_with_status_reason_and_message(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        retry = RetryInfo(retry_delay=Duration(seconds=5))
        fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "8 wait\nalready", ErrorInfo(reason="QUEUE_FULL"), retry)
        yield token("never")

    fake.script = script
    assert cli.main(["generate", "--target", fake.target, "hi"]) == 1
    assert capsys.readouterr().err == "sipc: RESOURCE_EXHAUSTED QUEUE_FULL: 8 wait already (try again in 5 s)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--target", "nowhere", "hi"],
        ["--token-file", "/nonexistent/token", "hi"],
        ["--seed", "-1", "hi"],
        ["--token-ids", "one two"],
        ["\udcff"],
    ],
)
def test_what_cannot_be_sent_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--target", "127.0.0.1:1", *arguments]) == 2
    assert capsys.readouterr().err.startswith("sipc: ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a\udcff"], "prompt: character 1 is no Unicode"),
        (["--chat", "a\udcff"], "chat.messages.content: character 1 is no Unicode"),
        (["--model", "\udcff", "hi"], "model: character 0 is no Unicode"),
        (["--stop", "ab\udcff", "hi"], "stop: character 2 is no Unicode"),
        (["-"], "prompt: byte 2 of standard input is no UTF-8"),
    ],
)
def test_text_that_is_no_unicode_is_refused_by_name(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert cli.main(["generate", "--target", "127.0.0.1:1", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"sipc: {problem}")


def test_a_closed_standard_input_is_no_prompt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["generate", "--target", "127.0.0.1:1", "-"]) == 2
    assert capsys.readouterr().err == "sipc: standard input is closed, wanted a prompt there\n"


def with_redirection(redirection: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *sipc(*arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    return subprocess.run(command, capture_output=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("output", "problem"),
    [(">&-", "standard output is closed"), (">/dev/full", "standard output: No space left on device")],
)
def test_output_that_cannot_be_written_is_one_line(fake: Fake, output: str, problem: str) -> None:
    done = with_redirection(output, "generate", "--target", fake.target, "hi")
    assert (done.returncode, done.stderr.decode()) == (1, f"sipc: {problem}\n")


def test_without_a_standard_error_the_text_comes_all_the_same(fake: Fake) -> None:
    done = with_redirection("2>&-", "generate", "--target", fake.target, "--stats", "hi")
    assert (done.returncode, done.stdout.decode()) == (0, " Grüße 🌿\n")


def test_an_error_that_nobody_can_read_is_not_written_into_the_output() -> None:
    done = with_redirection("2>&-", "status", "--target", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, b"")


def test_wrong_flags_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "--max-tokens", "many", "hi"])
    assert caught.value.code == 2
    assert "invalid int value" in capsys.readouterr().err


def test_status_as_json_is_one_object(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--target", fake.target, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["state"] == "DAEMON_STATE_SERVING"
    assert status["memory"]["ledger"] == [{"name": "ring", "bytes": 2**25}]
    assert status["queue"] == {"active": 1, "queued": 0, "max_queued": 8}


def test_status_for_people_names_state_queue_and_ledger(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--target", fake.target]) == 0
    text = capsys.readouterr().out
    assert "sipd 0.1.0: serving, model tiny, up 1 h 2 min" in text
    assert "1 active, 0 of 8 queued" in text
    assert "32.0 MiB" in text


def test_status_for_people_names_sharing_reuse_and_drafts(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--target", fake.target]) == 0
    text = capsys.readouterr().out
    assert "512 rows a pass, 48 while decoding; 8 requests, 16 of one client; 2 clients now" in text
    assert "reuse    on: 900 tokens, 300 of them from disk; 1.0 MiB kept, 3 of 16 sessions" in text
    assert "drafts   on, from the text so far: 40 of 50 were right" in text


def test_status_for_people_names_what_the_kernel_counts(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--target", fake.target]) == 0
    text = capsys.readouterr().out
    assert "limit met 4 times, throttled 3, out of memory 2, killed 1" in text
    assert "stalled  by storage in the last 10 s: some task 12.5 %, all tasks 2.5 %" in text
    assert "stalled  by memory" not in text


def test_model_as_json_is_the_model(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "--target", fake.target, "--json"]) == 0
    model = json.loads(capsys.readouterr().out)
    assert (model["name"], model["n_layers"], model["context_tokens"]) == ("tiny", 5, 0)


def test_model_for_people_names_it(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "--target", fake.target]) == 0
    assert capsys.readouterr().out.startswith("tiny: llama, 5 layers")


def test_an_interrupt_that_a_library_swallows_ends_the_command_all_the_same() -> None:
    script = """
import signal, time
from sipd_client import interrupt
interrupt.GRACE_S = 0.05
with interrupt.ends_on_interrupt():
    while True:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=WAIT_S, env=environment)
    assert done.returncode == 130
