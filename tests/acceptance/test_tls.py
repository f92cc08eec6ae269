"""A real daemon on a network address: who gets in, and secrets that change while a stream runs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from sipd.cert import run_cert_init
from sipd.server.tokens import new_token, token_line
from sipd.v1 import status_pb2
from sipd.v1.generation_pb2_grpc import GenerationServiceStub
from sipd.v1.status_pb2_grpc import StatusServiceStub
from tests.acceptance.daemons import Daemon, next_ids, read_reply, request_for, running_daemon
from tests.acceptance.models import stories_golden, stories_paths
from tests.acceptance.prompts import Prompts
from tests.certificates import TlsFolder, make_tls_folder

CALL_S = 30.0
STREAM_S = 120.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """A daemon that wants a client certificate and a token on its network address."""

    daemon: Daemon
    tls: TlsFolder
    token: str
    target: str

    def channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            return grpc.insecure_channel(self.target, options)
        return grpc.secure_channel(self.target, credentials, options)


def network_target(daemon: Daemon) -> str:
    """Returns 127.0.0.1 and the port that the daemon got on all addresses."""
    line = daemon.wait_for_line("serving .*0\\.0\\.0\\.0:")
    found = re.search(r"0\.0\.0\.0:(\d+)", line)
    assert found is not None
    return f"127.0.0.1:{found[1]}"


def status_code(channel: grpc.Channel, token: str | None) -> grpc.StatusCode:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        StatusServiceStub(channel).GetStatus(status_pb2.GetStatusRequest(), timeout=CALL_S, metadata=metadata)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tls, token = make_tls_folder(folder / "tls"), new_token()
    (folder / "tokens").write_text(token_line("kitchen", token))
    (folder / "tokens").chmod(0o600)
    flags = ["--listen", "0.0.0.0:0", "--token-file", f"{folder}/tokens", *tls.flags(with_clients=True)]
    with running_daemon(stories_paths()["gguf"], *flags) as daemon:
        yield Guarded(daemon, tls, token, network_target(daemon))


@pytest.mark.parametrize("token", ["good", "wrong", None])
def test_with_a_client_certificate_the_token_decides(guarded: Guarded, token: str | None) -> None:
    given = guarded.token if token == "good" else token
    with guarded.channel(guarded.tls.credentials("phone")) as channel:
        wanted = grpc.StatusCode.OK if token == "good" else grpc.StatusCode.UNAUTHENTICATED
        assert status_code(channel, given) is wanted


def test_without_a_client_certificate_the_handshake_fails_and_the_log_says_so(guarded: Guarded) -> None:
    with guarded.channel(guarded.tls.credentials()) as channel:
        assert status_code(channel, guarded.token) is grpc.StatusCode.UNAVAILABLE
    guarded.daemon.wait_for_line("PEER_DID_NOT_RETURN_A_CERTIFICATE")


def test_a_certificate_of_another_authority_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    other = make_tls_folder(tmp_path / "other")
    credentials = grpc.ssl_channel_credentials(
        guarded.tls.read("ca.crt"), other.read("client-phone.key"), other.read("client-phone.crt")
    )
    with guarded.channel(credentials) as channel:
        assert status_code(channel, guarded.token) is grpc.StatusCode.UNAVAILABLE
    guarded.daemon.wait_for_line("CERTIFICATE_VERIFY_FAILED")


def test_a_client_that_does_not_know_the_authority_talks_to_nobody(guarded: Guarded, tmp_path: Path) -> None:
    other = make_tls_folder(tmp_path / "other")
    with guarded.channel(other.credentials()) as channel:
        assert status_code(channel, guarded.token) is grpc.StatusCode.UNAVAILABLE


def test_a_plain_client_gets_nothing_from_the_network_address(guarded: Guarded) -> None:
    with guarded.channel(None) as channel:
        assert status_code(channel, guarded.token) is grpc.StatusCode.UNAVAILABLE


def test_the_unix_socket_stays_plain_and_wants_the_token(guarded: Guarded) -> None:
    assert status_code(guarded.daemon.channel, guarded.token) is grpc.StatusCode.OK
    assert status_code(guarded.daemon.channel, None) is grpc.StatusCode.UNAUTHENTICATED


def test_tokens_and_text_travel_over_tls_and_the_record_names_the_token(guarded: Guarded) -> None:
    golden = stories_golden()
    request = request_for(golden.prompt_ids, 20)
    request.request_id = "over-tls"
    metadata = (("authorization", f"Bearer {guarded.token}"),)
    with guarded.channel(guarded.tls.credentials("phone")) as channel:
        call = GenerationServiceStub(channel).Generate(request, timeout=CALL_S, metadata=metadata)
        assert read_reply(call).ids == golden.greedy_ids[:20]
    assert guarded.daemon.record("over-tls")["client"] == "token:kitchen"


def test_a_hangup_changes_token_and_certificate_under_a_stream_that_goes_on(
    smollm2: Path, prompts: Prompts, tmp_path: Path
) -> None:
    tls, old, new = make_tls_folder(tmp_path / "tls"), new_token(), new_token()
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("kitchen", old))
    tokens.chmod(0o600)
    flags = ["--listen", "0.0.0.0:0", "--token-file", str(tokens), *tls.flags(), "--context", "512"]
    with running_daemon(smollm2, *flags) as daemon:
        guarded = Guarded(daemon, tls, old, network_target(daemon))
        trusts_first = tls.credentials()
        metadata = (("authorization", f"Bearer {old}"),)
        with guarded.channel(trusts_first) as channel:
            generation = GenerationServiceStub(channel)
            wanted = read_reply(
                generation.Generate(request_for(prompts.long(20), 120), timeout=STREAM_S, metadata=metadata)
            ).ids
            call = generation.Generate(request_for(prompts.long(20), 120), timeout=STREAM_S, metadata=metadata)
            ids = next_ids(call)
            for file in tls.path.iterdir():
                file.unlink()
            run_cert_init(tls.path, [], renew=False, days=100)
            tokens.write_text(token_line("kitchen", new))
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for_line("reloaded the certificate")
            with guarded.channel(tls.credentials()) as second:
                assert status_code(second, new) is grpc.StatusCode.OK
                assert status_code(second, old) is grpc.StatusCode.UNAUTHENTICATED
            with guarded.channel(trusts_first) as third:
                assert status_code(third, new) is grpc.StatusCode.UNAVAILABLE
            assert ids + read_reply(call).ids == wanted
        tls_key = tls.path / "server.key"
        tls_key.write_text("no key")
        daemon.process.send_signal(signal.SIGHUP)
        assert str(tls_key) in daemon.wait_for_line("reload failed, everything stays as it was: tls_key")
        with guarded.channel(tls.credentials()) as fourth:
            assert status_code(fourth, new) is grpc.StatusCode.OK


def test_a_client_certificate_names_its_client_in_the_record(tmp_path: Path) -> None:
    tls = make_tls_folder(tmp_path / "tls")
    request = request_for(stories_golden().prompt_ids, 2)
    request.request_id = "by-certificate"
    flags = ["--listen", "0.0.0.0:0", *tls.flags(with_clients=True)]
    with running_daemon(stories_paths()["gguf"], *flags) as daemon:
        guarded = Guarded(daemon, tls, "", network_target(daemon))
        with guarded.channel(tls.credentials("phone")) as channel:
            read_reply(GenerationServiceStub(channel).Generate(request, timeout=CALL_S))
        assert daemon.record("by-certificate")["client"] == "cert:phone"
