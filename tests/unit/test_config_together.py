"""Settings that are sound alone but not together."""

from __future__ import annotations

import pytest

from sipd.config import load_config
from sipd.errors import ConfigError

NOWHERE = {"SIPD_CONFIG": ""}
TLS = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
LAN = {"listen": ["192.168.1.20:50051"]}


@pytest.mark.parametrize(
    "settings", [TLS, {**TLS, "tls_client_ca": "/ca.pem"}, {"token_file": "/tokens"}, {"insecure_lan": "on"}]
)
def test_a_network_address_is_taken_with_tls_tokens_or_in_so_many_words(settings: dict[str, str]) -> None:
    assert load_config({**LAN, **settings}, NOWHERE).listen[0].host == "192.168.1.20"


def test_a_network_address_alone_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"192\.168\.1\.20:50051 .* neither tls_cert nor token_file") as caught:
        load_config(LAN, NOWHERE)
    assert caught.value.setting == "listen"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"tls_cert": "/c.pem"}, "tls_key"),
        ({"tls_key": "/k.pem"}, "tls_cert"),
        ({"tls_client_ca": "/ca.pem"}, "tls_cert"),
    ],
)
def test_half_of_tls_is_refused_by_the_setting_that_is_missing(settings: dict[str, str], setting: str) -> None:
    with pytest.raises(ConfigError, match="not set, wanted beside") as caught:
        load_config(settings, NOWHERE)
    assert caught.value.setting == setting
