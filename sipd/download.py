"""Downloads one https file: resumed by Range, checked for space before and for its digest after.

Invariant: bytes go to NAME.part, and NAME appears by one rename when size and digest are right.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO

from sipd.errors import PullError
from sipd.progress_line import ProgressLine
from sipd.size import format_size
from sipd.stored_file import commit, file_sha256, require_space

_CHUNK_BYTES = 1024**2
_TIMEOUT_S = 30.0  # of silence, not of the whole download
_HTTP_PARTIAL = 206
_HTTP_RANGE_NOT_SATISFIABLE = 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(url: str, folder: Path, *, sha256: str | None = None, schemes: tuple[str, ...] = ("https",)) -> Path:
    """Returns the path of the file at `url` in `folder`; raises PullError. `schemes` is for tests only."""
    target = folder / _file_name(url, schemes)
    if sha256 is not None:
        sha256 = sha256.lower()
        if _SHA256.fullmatch(sha256) is None:
            raise PullError(f"--sha256: found {sha256!r}, wanted 64 hexadecimal digits")
    if target.is_file():
        if sha256 is None or file_sha256(target) == sha256:
            return target
        raise PullError(f"{target}: is there with another sha256, wanted {sha256}; remove it first")
    part = folder / f"{target.name}.part"
    try:
        _fetch(url, part, schemes)
    except urllib.error.HTTPError as error:
        raise PullError(f"{url}: the server answers {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        kept = f"; {part} is kept, pull again to resume" if part.exists() else ""
        raise PullError(f"{url}: {cause}{kept}") from error
    if sha256 is not None and (digest := file_sha256(part)) != sha256:
        _forget(part)  # resuming would only repeat the fault
        raise PullError(f"{url}: has sha256 {digest}, wanted {sha256}")
    commit(part, target)
    _tag_path(part).unlink(missing_ok=True)
    return target


def _fetch(url: str, part: Path, schemes: tuple[str, ...]) -> None:
    """Completes `part`, from where it ends when the server still has the same file."""
    with _open(url, part, schemes) as response:
        start, total = _extent(response)
        if start == 0:
            _forget(part)
        if total is not None:
            require_space(part.parent, total - start)
        _write_tag(part, response.headers)
        with part.open("ab") as file, ProgressLine(f"downloading {part.stem}", total) as progress:
            progress.start_at(start)
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                progress.advance(len(chunk))
    n_bytes = part.stat().st_size
    if total is not None and n_bytes != total:
        raise PullError(
            f"{url}: ended after {format_size(n_bytes)} of {format_size(total)}; {part} is kept, pull again to resume"
        )


def _open(url: str, part: Path, schemes: tuple[str, ...]) -> HTTPResponse:
    """Returns the response; asks for the rest of `part` when the tag of its start is known."""
    opener = urllib.request.build_opener(_RedirectWithin(schemes))
    tag, size = _read_tag(part), part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sipd", "Accept-Encoding": "identity"}
    if tag and size:
        headers |= {"Range": f"bytes={size}-", "If-Range": tag}
    try:
        response: HTTPResponse = opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)  # noqa: S310 - scheme checked
    except urllib.error.HTTPError as error:
        if error.code != _HTTP_RANGE_NOT_SATISFIABLE:
            raise
        _forget(part)  # the part is as long as the file, or longer: start again
        return _open(url, part, schemes)
    if response.status == _HTTP_PARTIAL and _extent(response)[0] != size:
        response.close()
        _forget(part)
        return _open(url, part, schemes)
    return response


def _extent(response: HTTPResponse) -> tuple[int, int | None]:
    """Returns (offset of the first byte sent, size of the whole file or None)."""
    if response.status == _HTTP_PARTIAL:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


class _RedirectWithin(urllib.request.HTTPRedirectHandler):
    """Follows redirects to allowed schemes only: https is never left."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Returns the next request; raises PullError for another scheme."""
        if urllib.parse.urlsplit(newurl).scheme not in self._schemes:
            raise PullError(f"{req.full_url}: redirects to {newurl}, wanted {' or '.join(self._schemes)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _file_name(url: str, schemes: tuple[str, ...]) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise PullError(f"{url}: wanted {' or '.join(schemes)}://HOST/…/FILE")
    name = urllib.parse.unquote(parts.path.rpartition("/")[2])
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise PullError(f"{url}: its last part is no file name")
    return name


def _tag_path(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _write_tag(part: Path, headers: HTTPMessage) -> None:
    """Remembers what identifies the file, so that a changed one is not appended to."""
    tag = headers.get("ETag", "")
    if tag.startswith("W/") or not tag:
        tag = headers.get("Last-Modified", "")
    _tag_path(part).write_text(json.dumps({"tag": tag}), encoding="utf-8")


def _read_tag(part: Path) -> str:
    try:
        return str(json.loads(_tag_path(part).read_text(encoding="utf-8"))["tag"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag_path(part).unlink(missing_ok=True)
