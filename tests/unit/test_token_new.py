"""`sipd token new`: the secret is shown once, the file gets its digest."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sipd.cli import main
from sipd.server.auth import TokenFile
from sipd.server.tokens import parse_token_lines


def test_without_a_file_the_line_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "kitchen"]) == 0
    told = capsys.readouterr()
    token = told.out.strip()
    line = next(line for line in told.err.splitlines() if line.startswith("kitchen:sha256:"))
    assert len(token) == 43
    assert token not in told.err
    assert parse_token_lines(line)[0].name == "kitchen"


def test_a_new_file_is_private_and_lets_the_token_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    assert main(["token", "new", "kitchen", "--file", str(path)]) == 0
    token = capsys.readouterr().out.strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text()
    assert TokenFile(path).accepts(f"Bearer {token}") == "kitchen"


def test_a_line_is_added_after_the_others_and_the_mode_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text("# ours\nold:a-token-of-24-characters")  # no newline at its end
    path.chmod(0o640)
    for name in ("phone", "phone"):
        assert main(["token", "new", name, "--file", str(path)]) == 0
    told = capsys.readouterr()
    assert [token.name for token in parse_token_lines(path.read_text())] == ["old", "phone", "phone"]
    assert path.read_text().startswith("# ours\nold:a-token-of-24-characters\nphone:sha256:")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "phone has 2 tokens" in told.err
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


def test_a_link_keeps_pointing_to_the_file_that_is_filled(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "tokens")
    (tmp_path / "tokens").write_text("old:a-token-of-24-characters\n")
    assert main(["token", "new", "phone", "--file", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert len(parse_token_lines((tmp_path / "tokens").read_text())) == 2


@pytest.mark.parametrize("text", ["short", "\xff"])
def test_a_file_that_the_daemon_would_refuse_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, "latin-1")
    assert main(["token", "new", "phone", "--file", str(path)]) == 78
    assert f"sipd: token_file: {path}: " in capsys.readouterr().err
    assert path.read_text("latin-1") == text


def test_a_name_with_a_colon_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "a:b"]) == 78
    assert "wanted 1 to 48 printable characters without a colon" in capsys.readouterr().err
