from __future__ import annotations

from pathlib import Path

import pytest

from sipd.config import Config, default_models_dir, load_config, read_systemd_environment
from sipd.errors import ConfigError
from sipd.listen_address import ListenAddress


def toml(folder: Path, text: str) -> Path:
    path = folder / "sipd.toml"
    path.write_text(text)
    return path


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert load_config({}, {}, toml(tmp_path, "")) == Config()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "threads = 1\nmax_queued = 1\nreaders = 1")
    config = load_config({"threads": "3"}, {"SIPD_THREADS": "2", "SIPD_MAX_QUEUED": "2"}, file)
    assert (config.threads, config.max_queued, config.readers) == (3, 2, 1)


def test_flags_that_were_not_given_change_nothing(tmp_path: Path) -> None:
    assert load_config({"threads": None}, {}, toml(tmp_path, "threads = 2")).threads == 2


def test_sizes_are_parsed_from_every_source(tmp_path: Path) -> None:
    assert load_config({"budget": "1.5G"}, {}).budget == 1536 * 1024**2
    assert load_config({}, {"SIPD_BUDGET": "512M"}).budget == 512 * 1024**2
    assert load_config({}, {}, toml(tmp_path, "budget = 123456789")).budget == 123456789


def test_several_addresses_can_be_given(tmp_path: Path) -> None:
    wanted = (ListenAddress("/run/s", None), ListenAddress("127.0.0.1", 7))
    assert load_config({"listen": ["unix:/run/s", "127.0.0.1:7"]}, {}).listen == wanted
    assert load_config({}, {"SIPD_LISTEN": "unix:/run/s, 127.0.0.1:7"}).listen == wanted
    assert load_config({}, {}, toml(tmp_path, 'listen = ["unix:/run/s", "127.0.0.1:7"]')).listen == wanted


def test_under_systemd_the_daemon_listens_in_its_runtime_directory() -> None:
    assert str(load_config({}, {"RUNTIME_DIRECTORY": "/run/sipd"}).listen[0]) == "unix:/run/sipd/sipd.sock"


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    assert load_config({}, {"SIPD_CONFIG": str(toml(tmp_path, "threads = 2"))}).threads == 2


def test_an_unknown_key_in_the_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^thread: unknown setting in .*sipd\.toml, wanted one of model, "):
        load_config({}, {}, toml(tmp_path, "thread = 2"))


def test_an_unknown_variable_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^SIPD_THREAD: unknown setting in the environment"):
        load_config({}, {"SIPD_THREAD": "2"})


def test_the_variables_of_client_and_tests_are_let_pass() -> None:
    assert load_config({}, {"SIPD_TARGET": "unix:/x", "SIPD_SHARED": "/y", "PATH": "/bin"}) == Config()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", "12X"),
        ("budget", "0"),
        ("budget", True),
        ("threads", "0"),
        ("threads", "-1"),
        ("threads", "2.5"),
        ("threads", 1.0),
        ("threads", True),
        ("context", "99999999999"),
        ("max_queued", "-1"),
        ("grace_s", "nan"),
        ("grace_s", "inf"),
        ("grace_s", "-1"),
        ("grace_s", "soon"),
        ("direct_io", "maybe"),
        ("isa", "avx9"),
        ("listen", "nowhere"),
        ("listen", []),
        ("listen", ["unix:/a", "unix:/a"]),
        ("insecure_lan", "perhaps"),
        ("model", ""),
        ("model", "a\0b"),
        ("log_level", "loud"),
        ("tile_bytes", "0"),
        ("readers", "0"),
        ("readers", "65"),
        ("context", "1"),
        ("max_prompt_bytes", "2G"),
        ("max_prompt_bytes", 1024**4),
        ("model_name", "m\udcff"),
        ("listen", "unix:/a\udcff"),
        ("listen", "h\udcff:1"),
        ("listen", "unix:/a%20b"),
        ("listen", "unix:~nobody-by-this-name/s"),
        ("model", "~nobody-by-this-name/m.gguf"),
    ],
)
def test_a_value_that_cannot_be_used_names_setting_source_found_and_wanted(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)^{name}: from flag: found .*wanted") as caught:
        load_config({name: value}, {})
    assert caught.value.setting == name
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("readers", "64", 64),
        ("context", "2", 2),
        ("max_queued", "0", 0),
        ("max_prompt_bytes", "1G", 1024**3),
        ("model_name", "Grüße", "Grüße"),
    ],
)
def test_the_last_value_before_a_bound_is_taken(name: str, value: str, found: object) -> None:
    assert getattr(load_config({name: value}, {}), name) == found


def test_a_tilde_stands_for_the_home_directory_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/tests")
    config = load_config({"listen": ["unix:~/s.sock"], "model": "~/m.gguf"}, {})
    assert (str(config.listen[0]), str(config.model)) == ("unix:/home/of/tests/s.sock", "/home/of/tests/m.gguf")


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_config({}, {}, tmp_path / "absent.toml")


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a TOML file"):
        load_config({}, {}, toml(tmp_path, "threads ="))


def test_a_lan_address_without_a_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:50051 can be reached from the network.*token_file"):
        load_config({"listen": ["0.0.0.0:50051"]}, {})


@pytest.mark.parametrize("more", [{"insecure_lan": "on"}, {"token_file": "/etc/sipd/tokens"}])
def test_a_lan_address_is_taken_with_a_token_or_in_so_many_words(more: dict[str, object]) -> None:
    assert not load_config({"listen": ["0.0.0.0:50051"], **more}, {}).listen[0].is_local


def test_a_socket_path_that_is_too_long_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"^listen: from flag: socket path has 123 bytes"):
        load_config({"listen": ["unix:/a/" + "x" * 120]}, {})


def test_models_go_to_the_cache_folder_of_the_user_or_of_systemd() -> None:
    assert default_models_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/sipd/models")
    assert default_models_dir({"CACHE_DIRECTORY": "/var/cache/sipd"}) == Path("/var/cache/sipd/models")
    assert default_models_dir({}) == Path.home() / ".cache/sipd/models"


def test_systemd_variables_are_read_for_this_process_only() -> None:
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7", "JOURNAL_STREAM": "8:9"}
    ours = read_systemd_environment(environ, 7, "8:9")
    assert (ours.notify_socket, ours.watchdog_s, ours.has_journal_stderr) == ("/n", 10.0, True)
    other = read_systemd_environment(environ, 8, "8:10")
    assert (other.watchdog_s, other.has_journal_stderr) == (None, False)


def test_without_systemd_nothing_is_assumed() -> None:
    environment = read_systemd_environment({}, 7, None)
    assert (environment.notify_socket, environment.watchdog_s, environment.has_journal_stderr) == (None, None, False)
