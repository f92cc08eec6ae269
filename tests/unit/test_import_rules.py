"""The borders between the parts of sipd, held by reading every module's syntax tree."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sipd"
SHARED = frozenset(
    {
        *("cgroup", "config", "errors", "foreign_text", "listen_address", "memory", "pressure", "process_memory"),
        *("plain_file", "progress_line", "size"),
    }
)
BELOW = {
    "server": {"text", "planned_model", "engine", "models", "weights", "kernels", "v1"},
    "text": set[str](),
    "planned_model": {"engine", "models", "weights", "kernels"},
    "engine": {"models", "weights", "kernels"},
    "models": {"weights", "kernels"},
    "weights": {"kernels"},
    "kernels": {"weights"},
}
SERVING = (*BELOW, *SHARED)
OPENS_MODEL_FILES = {"weights/reader.py", "weights/model_file.py"}
OPENS_SNAPSHOTS = "engine/snapshot_file.py"
STARTS_PROCESSES = {"subprocess", "multiprocessing", "pty", "concurrent.futures.process"}
STARTING_CALLS = (
    "fork",
    "forkpty",
    "system",
    "popen",
    "posix_spawn",
    "spawn",
    "exec",
    "create_subprocess_",
    "subprocess_",
)


def modules(*parts: str) -> Iterator[Path]:
    """Yields the modules of the named packages and top-level files; all but generated ones without names."""
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part != "v1" and (not parts or part in parts):
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> set[str]:
    """Returns the full names that a module imports anywhere, lazily or for type checking too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yields the dotted text of each called name and the call."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def tops(names: set[str]) -> set[str]:
    """Returns the parts of sipd among imported names: the package or the top-level module."""
    return {name.split(".")[1] for name in names if name.startswith("sipd.")} - {"__version__"}


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_itself_what_lies_below_it_and_what_is_shared(package: str) -> None:
    allowed = BELOW[package] | {package} | SHARED
    found = {name_of(path): tops(imports(path)) - allowed for path in modules(package)}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_what_is_shared_imports_nothing_but_what_is_shared() -> None:
    found = {name_of(path): tops(imports(path)) - SHARED for path in modules(*SHARED)}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_only_the_server_and_the_command_line_import_grpc() -> None:
    found = {
        name_of(path)
        for path in modules()
        for name in imports(path)
        if name.split(".")[0] in {"grpc", "grpc_health", "grpc_reflection", "google"}
    }
    assert {name for name in found if not name.startswith("server/") and name != "cli.py"} == set()


def test_only_the_server_knows_the_generated_messages() -> None:
    found = {name_of(path) for path in modules() if "v1" in tops(imports(path))}
    assert {name for name in found if not name.startswith("server/")} == set()


def test_only_the_binding_loads_the_kernel_library() -> None:
    found = {
        name_of(path)
        for path in modules()
        for name, call in calls(path)
        if name.rpartition(".")[2] in {"CDLL", "PyDLL", "LoadLibrary"}
        and [ast.unparse(argument) for argument in call.args] != ["None"]  # None: the C library of the process itself
    }
    assert found == {"kernels/binding.py"}


def test_only_the_readers_open_model_files() -> None:
    found = {
        name_of(path)
        for path in modules("weights", "kernels", "models", "engine")
        for name, _ in calls(path)
        if name == "open" or name.rpartition(".")[2] in {"open", "FileIO", "read_bytes", "mmap", "memmap", "fromfile"}
    }
    readers = OPENS_MODEL_FILES | {OPENS_SNAPSHOTS}
    assert {name for name in found if name not in readers and not name.startswith("kernels/reference")} == set()


def test_nothing_that_serves_starts_a_process() -> None:
    found = {
        (name_of(path), name)
        for path in modules(*SERVING)
        for name in imports(path) | {called for called, _ in calls(path)}
        if any(name == each or name.startswith(f"{each}.") for each in STARTS_PROCESSES)
        or name.rpartition(".")[2].startswith(STARTING_CALLS)
    }
    assert found == set()


def test_nothing_that_serves_imports_what_starts_a_process() -> None:
    starters = {path.stem for path in modules() if imports(path) & STARTS_PROCESSES}
    assert "pull" in starters
    assert {name_of(path) for path in modules(*SERVING) if tops(imports(path)) & starters} == set()


def test_only_the_configuration_and_the_command_line_read_the_environment() -> None:
    found = {
        name_of(path)
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
    }
    assert found <= {"config.py", "cli.py"}


def test_the_client_needs_nothing_of_the_daemon_and_no_numpy() -> None:
    client = ROOT.parent / "clients" / "python" / "src" / "sipd_client"
    found = {name.split(".")[0] for path in client.rglob("*.py") for name in imports(path)}
    assert found & {"sipd", "numpy", "tokenizers", "jinja2"} == set()
