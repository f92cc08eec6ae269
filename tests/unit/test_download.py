from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sipd.download import download
from sipd.errors import PullError

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class FileServer(ThreadingHTTPServer):
    """Serves CONTENT with Range and ETag; `cut` ends the next answer after that many bytes."""

    content = CONTENT
    etag = '"one"'
    cut: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/models/tiny.gguf"


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/x")
            self.end_headers()
            return
        if self.path == "/absent.gguf":
            self.send_error(404)
            return
        content, start = self.server.content, 0
        if wanted and self.headers.get("If-Range") == self.server.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", self.server.etag)
        self.end_headers()
        cut, self.server.cut = self.server.cut, None
        self.wfile.write(content[start : None if cut is None else start + cut])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        del format, args


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def fetch(server: FileServer, folder: Path, sha256: str | None = None) -> Path:
    return download(server.url, folder, sha256=sha256, schemes=("http",))


def test_a_file_is_downloaded_under_its_own_name_and_nothing_else_stays(server: FileServer, tmp_path: Path) -> None:
    path = fetch(server, tmp_path, DIGEST)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [tmp_path / "tiny.gguf"]


def test_an_interrupted_download_is_kept_and_resumed(server: FileServer, tmp_path: Path) -> None:
    server.cut = 100_000
    with pytest.raises(PullError, match="pull again to resume"):
        fetch(server, tmp_path)
    assert (tmp_path / "tiny.gguf.part").stat().st_size == 100_000
    assert fetch(server, tmp_path, DIGEST).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


def test_a_file_that_changed_meanwhile_is_downloaded_anew(server: FileServer, tmp_path: Path) -> None:
    server.cut = 100_000
    with pytest.raises(PullError):
        fetch(server, tmp_path)
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert fetch(server, tmp_path).read_bytes() == CONTENT[::-1]


def test_a_part_longer_than_the_file_is_downloaded_anew(server: FileServer, tmp_path: Path) -> None:
    server.cut = 100_000
    with pytest.raises(PullError):
        fetch(server, tmp_path)
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path, DIGEST).read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_gets_the_name(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(PullError, match=f"has sha256 {DIGEST}, wanted 00"):
        fetch(server, tmp_path, "00" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_and_right_is_not_asked_for(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    fetch(server, tmp_path, DIGEST)
    assert server.ranges == []


def test_a_file_that_is_there_and_different_is_not_overwritten(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"mine")
    with pytest.raises(PullError, match="is there with another sha256"):
        fetch(server, tmp_path, DIGEST)
    assert (tmp_path / "tiny.gguf").read_bytes() == b"mine"


def test_too_little_space_is_noticed_before_writing(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=1024)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: free)
    with pytest.raises(PullError, match=r"1\.0 KiB free"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://h/x.gguf", "file:///etc/passwd", "ftp://h/x"])
def test_only_https_is_taken(url: str, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="wanted https://HOST"):
        download(url, tmp_path)


@pytest.mark.parametrize("path", ["/", "/..", "/.hidden", "/a%2Fb"])
def test_a_url_without_a_plain_file_name_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="no file name"):
        download(f"https://127.0.0.1{path}", tmp_path)


def test_a_redirect_to_another_scheme_is_refused(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="redirects to ftp"):
        download(server.url.replace("models/tiny.gguf", "elsewhere"), tmp_path, schemes=("http",))


def test_a_missing_file_is_told_with_the_servers_answer(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="the server answers 404"):
        download(server.url.replace("models/tiny.gguf", "absent.gguf"), tmp_path, schemes=("http",))


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="refused"):
        download("http://127.0.0.1:9/x.gguf", tmp_path, schemes=("http",))


def test_a_digest_that_is_none_is_refused(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="wanted 64 hexadecimal digits"):
        fetch(server, tmp_path, "abc")
