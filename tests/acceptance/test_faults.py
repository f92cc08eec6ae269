"""A model file that changes under the daemon, a file that is no model, and a context that is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sipd.v1 import generation_pb2 as pb
from tests.acceptance.daemons import REPOSITORY, next_ids, read_reply, request_for, running_daemon
from tests.acceptance.models import stories_golden, stories_paths
from tests.acceptance.prompts import Prompts


def test_a_file_that_shrinks_ends_its_requests_as_data_loss_and_not_the_daemon(
    smollm2: Path, prompts: Prompts, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(smollm2, copy)
    with running_daemon(copy, "--pin", "off", "--context", "1024", "--budget", "200M") as daemon:
        call = daemon.start(request_for(prompts.long(10), 900))
        next_ids(call)
        os.truncate(copy, copy.stat().st_size * 6 // 10)
        with pytest.raises(grpc.RpcError) as error:
            read_reply(call)
        assert error.value.code() is grpc.StatusCode.DATA_LOSS
        assert "copy.gguf" in str(error.value.details())
        health = health_pb2_grpc.HealthStub(daemon.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=60.0)
        assert any(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING for answer in watch)
        watch.cancel()
        assert daemon.process.poll() is None
        daemon.process.terminate()
        assert daemon.process.wait(60.0) >= 0


@pytest.mark.parametrize("kind", ["text", "directory", "missing"])
def test_what_is_no_model_ends_the_daemon_with_its_reason(tmp_path: Path, kind: str) -> None:
    model = tmp_path / "model.gguf"
    if kind == "text":
        model.write_text("This is not a model.\n" * 100)
    if kind == "directory":
        model.mkdir()
    command = [sys.executable, "-m", "sipd", "serve", "--model", str(model), "--listen", f"unix:{tmp_path}/s"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert "model.gguf" in done.stderr.splitlines()[-1]


def test_a_reply_ends_where_the_context_is_full() -> None:
    golden = stories_golden()
    with running_daemon(stories_paths()["gguf"], "--context", "256") as daemon:
        reply = daemon.ask(golden.prompt_ids, 2000)
    assert len(golden.prompt_ids) + len(reply.ids) == 256
    assert reply.finished.reason == pb.FINISH_REASON_CONTEXT
    assert reply.ids[:200] == golden.greedy_ids


def test_a_prompt_without_tokens_is_refused_and_the_next_one_served(smollm2: Path) -> None:
    with running_daemon(smollm2) as daemon:
        for request in (
            pb.GenerateRequest(prompt=""),
            pb.GenerateRequest(prompt="\x04"),
            pb.GenerateRequest(token_ids=pb.TokenIds()),
            pb.GenerateRequest(chat=pb.ChatInput()),
        ):
            with pytest.raises(grpc.RpcError) as error:
                read_reply(daemon.start(request))
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        reply = read_reply(daemon.start(pb.GenerateRequest(prompt="a\x04b", stop=pb.Stop(max_tokens=2))))
    assert reply.finished.usage.prompt_tokens == 2
