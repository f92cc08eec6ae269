from __future__ import annotations

from contextlib import ExitStack

import pytest

from sipd.errors import ClientLimit
from sipd.server.client_identity import ClientIdentity
from sipd.server.client_places import ClientPlaces

ONE, OTHER = ClientIdentity("ip:10.0.0.1", "ip:10.0.0.1"), ClientIdentity("ip:10.0.0.2", "ip:10.0.0.2")
SHARED = ClientIdentity("local:unix", "local", is_shared=True)


def test_a_client_with_all_its_places_taken_is_refused_with_the_numbers() -> None:
    places = ClientPlaces()
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.hold(ONE, 3))
        with pytest.raises(ClientLimit, match=r"ip:10\.0\.0\.1 has 3 requests in the daemon, one client may have 3"):
            held.enter_context(places.hold(ONE, 3))


def test_another_client_is_not_refused_for_it() -> None:
    places = ClientPlaces()
    with places.hold(ONE, 1), places.hold(OTHER, 1):
        assert places.n_clients == 2


def test_a_place_is_given_back_when_the_request_ends_with_an_error() -> None:
    places = ClientPlaces()
    with pytest.raises(KeyError), places.hold(ONE, 1):
        raise KeyError
    with places.hold(ONE, 1):
        assert places.n_clients == 1


def test_a_refusal_takes_no_place() -> None:
    places = ClientPlaces()
    with places.hold(ONE, 1), pytest.raises(ClientLimit), places.hold(ONE, 1):
        pass
    assert places.n_clients == 0


def test_clients_that_share_a_name_are_counted_and_not_limited() -> None:
    places = ClientPlaces()
    with places.hold(SHARED, 1), places.hold(SHARED, 1), places.hold(SHARED, 1):
        assert places.n_clients == 1
    assert places.n_clients == 0
