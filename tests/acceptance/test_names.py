"""A model whose file name is no UTF-8: refused without a name to ask for, served under a given one, faults told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from sipd.v1 import model_pb2
from sipd.v1.model_pb2_grpc import ModelServiceStub
from tests.acceptance.daemons import START_S, running_daemon
from tests.builders import build_gguf

PROMPT = (5, 6, 7)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model as m\\xff.gguf."""
    return build_gguf(tmp_path / "m\udcff.gguf")


def test_without_a_name_it_is_refused_for_good(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sipd", "serve", "--model", str(model), "--listen", f"unix:{tmp_path}/s"]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=START_S)
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].startswith(rb"sipd: model_name: found 'm\udcff' ")


def test_under_a_given_name_it_is_served_and_a_fault_of_the_file_keeps_status_and_reason(model: Path) -> None:
    with running_daemon(model, "--model-name", "given", "--pin", "off", "--budget", "64M") as daemon:
        assert len(daemon.ask(PROMPT, 4).ids) == 4
        told = ModelServiceStub(daemon.channel).GetModel(model_pb2.GetModelRequest(), timeout=START_S).model
        assert (told.name, told.files[0].name) == ("given", r"m\udcff.gguf")
        os.utime(model)
        with pytest.raises(grpc.RpcError) as caught:
            daemon.ask((8, 9, 10), 4)
        error = caught.value
        assert error.code() is grpc.StatusCode.DATA_LOSS
        metadata = getattr(error, "trailing_metadata")()  # noqa: B009 - the stubs know it on calls only
        (detail,) = status_pb2.Status.FromString(dict(metadata)["grpc-status-details-bin"]).details
        info = error_details_pb2.ErrorInfo()
        assert detail.Unpack(info)
        assert info.reason == "MODEL_FILE_CHANGED"
        assert info.metadata["path"].endswith(r"/m\udcff.gguf")
