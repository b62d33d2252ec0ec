"""What every store of access promises: one user for each client, and all that is revoked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.admission import ItemAccess
from lakesync.errors import ValidationFailed
from lakesync.ports import KnownClient, Revocation, Seen

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import AccessStore

ODD = ["c|1", "|", "user", "\U0001f600" * 32]


@pytest.fixture
def access(item_store: ItemStore) -> ItemAccess:
    return ItemAccess(item_store)


def user_of(access: AccessStore, gateway: str, client_id: str) -> str | None:
    client = access.client(gateway, client_id)
    assert client is None or client.client_id == client_id
    return client.user if client else None


def test_unknown_client_has_no_user(access: AccessStore, gateway: str) -> None:
    assert user_of(access, gateway, "phone") is None


@pytest.mark.law("U1")
def test_client_stays_bound_to_the_first_user(access: AccessStore, gateway: str) -> None:
    assert access.bind(gateway, "phone", "ann") == "ann"
    assert access.bind(gateway, "phone", "bob") == "ann"
    assert access.bind(gateway, "phone", "ann") == "ann"
    assert user_of(access, gateway, "phone") == "ann"


@pytest.mark.law("U1")
def test_concurrent_binds_of_a_client_give_one_user(access: AccessStore, gateway: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        users = set(pool.map(lambda n: access.bind(gateway, "phone", f"user-{n}"), range(32)))

    assert users == {user_of(access, gateway, "phone")}


@pytest.mark.parametrize("client", ODD)
def test_client_bindings_are_separate_by_gateway_and_client_id(
    access: AccessStore, gateway: str, client: str
) -> None:
    access.bind(gateway, client, "ann|1")

    assert user_of(access, gateway, client) == "ann|1"
    assert user_of(access, gateway, "c1") is None
    assert user_of(access, f"{gateway}x", client) is None


@pytest.mark.law("U7")
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_clients_are_listed_once_across_pages(
    access: AccessStore, gateway: str, limit: int
) -> None:
    wanted = {name: f"user of {name}" for name in (*ODD, *(f"c{n}" for n in range(6)))}
    for name, user in wanted.items():
        access.bind(gateway, name, user)

    given: list[tuple[str, str]] = []
    place = ""
    while True:
        page, place = access.clients(gateway, place, limit)
        assert len(page) <= limit
        given += [(client.client_id, client.user) for client in page]
        if not place:
            break
    assert sorted(given) == sorted(wanted.items())
    assert access.clients(f"{gateway}x", "", 10) == ([], "")


@pytest.mark.law("U7")
@pytest.mark.parametrize("client", ODD)
def test_client_is_returned_with_its_latest_activity(
    access: AccessStore, gateway: str, client: str
) -> None:
    access.bind(gateway, client, "ann")
    assert access.client(gateway, client) == KnownClient(client, "ann", None)
    for seen in (Seen(10, 0), Seen(20, 1 << 62, 7), Seen(30, 5, 0), Seen(40, 6)):
        access.note(gateway, client, seen)
        assert access.client(gateway, client) == KnownClient(client, "ann", seen)
        assert access.clients(gateway, "", 9) == ([KnownClient(client, "ann", seen)], "")
    access.note(gateway, client, Seen(40, 1, 1))
    access.note(gateway, client, Seen(39, 1, 1))
    assert access.client(gateway, client) == KnownClient(client, "ann", Seen(40, 6))


@pytest.mark.law("U7")
def test_activity_creates_no_client_and_is_removed_with_it(
    access: AccessStore, gateway: str
) -> None:
    access.note(gateway, "phone", Seen(10, 5, 1))
    assert access.client(gateway, "phone") is None
    assert access.clients(gateway, "", 9) == ([], "")
    access.bind(gateway, "phone", "ann")
    access.note(gateway, "phone", Seen(10, 5, 1))
    access.release(gateway, "phone")
    access.note(gateway, "phone", Seen(20, 5, 1))
    assert access.bind(gateway, "phone", "bob") == "bob"
    assert access.client(gateway, "phone") == KnownClient("phone", "bob", None)


def test_released_client_can_be_bound_to_another_user(access: AccessStore, gateway: str) -> None:
    access.release(gateway, "phone")
    access.bind(gateway, "phone", "ann")
    access.release(gateway, "phone")

    assert user_of(access, gateway, "phone") is None
    assert access.bind(gateway, "phone", "bob") == "bob"


def test_nothing_is_revoked_at_first(access: AccessStore, gateway: str) -> None:
    assert access.revocations(gateway) == []


@pytest.mark.law("U2")
def test_revocations_are_listed_in_order(access: AccessStore, gateway: str) -> None:
    wanted = [Revocation("client", name, 5, "ops") for name in ("a", "ann", "b")]
    wanted += [Revocation("user", name, 6, "ops") for name in ("ann", "bob")]
    for revocation in reversed(wanted):
        access.revoke(gateway, revocation)

    assert access.revocations(gateway) == wanted
    assert access.revocations(f"{gateway}x") == []


@pytest.mark.parametrize("name", ODD)
def test_revocation_keeps_any_name(access: AccessStore, gateway: str, name: str) -> None:
    revocation = Revocation("user", name, 1, "auth0|ops")
    access.revoke(gateway, revocation)

    assert access.revocations(gateway) == [revocation]


def test_repeated_revocation_replaces_the_earlier_one(access: AccessStore, gateway: str) -> None:
    access.revoke(gateway, Revocation("user", "ann", 1, "ops"))
    access.revoke(gateway, Revocation("user", "ann", 2, "sec"))

    assert access.revocations(gateway) == [Revocation("user", "ann", 2, "sec")]


@pytest.mark.law("U2")
def test_restored_user_is_no_longer_revoked(access: AccessStore, gateway: str) -> None:
    access.revoke(gateway, Revocation("user", "ann", 1, "ops"))
    access.revoke(gateway, Revocation("client", "ann", 1, "ops"))
    access.restore(gateway, "user", "ann")
    access.restore(gateway, "user", "nobody")

    assert access.revocations(gateway) == [Revocation("client", "ann", 1, "ops")]


def test_over_a_thousand_revocations_are_all_listed(access: AccessStore, gateway: str) -> None:
    wanted = [Revocation("user", f"{n:04}", n, "ops") for n in range(1_100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: access.revoke(gateway, each), wanted))

    assert access.revocations(gateway) == wanted


def test_invalid_gateway_id_is_refused(access: AccessStore) -> None:
    for ask in (access.client, access.release):
        with pytest.raises(ValidationFailed):
            ask("a|b", "phone")
    with pytest.raises(ValidationFailed):
        access.bind("a|b", "phone", "ann")
    with pytest.raises(ValidationFailed):
        access.revocations("a|b")
