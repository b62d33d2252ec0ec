"""Where databases may be: at public addresses, and where the operator lists."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.network import ANYWHERE, addresses_of, check_listed, first_answer
from lakesync.connectors.registry import configured
from lakesync.errors import AdapterRefused, AdapterUnreachable, ValidationFailed
from lakesync.systems.mysql.mysql_dialect import MySql
from lakesync.systems.mysql.mysql_settings import MYSQL
from lakesync.systems.postgres.postgres_dialect import Postgres
from lakesync.systems.postgres.postgres_settings import POSTGRES
from lakesync.systems.postgres.postgres_source import PostgresActionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PUBLIC = "93.184.216.34"
PRIVATE = (
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8",
    "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::1/128", "fd00::/8",
    "fe80::/10", "fec0::/10", "ff00::/8", "::/96",
)  # fmt: skip
LISTS_EVERYTHING = ("0.0.0.0/0", "::/0", "*.example.com")


def within(networks: Sequence[str]) -> st.SearchStrategy[str]:
    """Addresses of networks, IPv4 ones also as IPv6 networks carry them."""

    def written(address: Any, form: Callable[[Any], object]) -> str:
        return str(form(address) if address.version == 4 else address)

    addresses = st.sampled_from(networks).flatmap(lambda one: st.ip_addresses(network=one))
    forms = st.sampled_from([str, _mapped, _translated, _sixtofour])
    return st.builds(written, addresses, forms)


def _mapped(address: Any) -> object:
    return ipaddress.IPv6Address((0xFFFF << 32) | int(address))


def _translated(address: Any) -> object:
    return ipaddress.IPv6Address((0x64FF9B << 96) | int(address))


def _sixtofour(address: Any) -> object:
    return ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80))


def resolving(*addresses: str) -> Any:
    return lambda *_: list(addresses)


@pytest.mark.law("N19")
@given(inside=within(PRIVATE), more=st.booleans())
def test_host_name_that_resolves_to_a_private_address_is_refused(
    inside: str, *, more: bool
) -> None:
    addresses = [PUBLIC, inside] if more else [inside]
    with pytest.raises(AdapterRefused, match="DatabaseHosts"):
        addresses_of("db.example.com", 5432, (), resolving(*addresses))
    assert addresses_of("db.example.com", 5432, (), resolving(PUBLIC)) == [PUBLIC]


@pytest.mark.law("N19")
@given(never=within(["169.254.0.0/16", "0.0.0.0/8", "fd00:ec2::/32", "::/128"]))
def test_metadata_and_unspecified_addresses_are_refused_by_any_list(never: str) -> None:
    listed = (*ANYWHERE, *LISTS_EVERYTHING, "169.254.0.0/16", "db.example.com", f"{never}/128")
    with pytest.raises(AdapterRefused):
        addresses_of("db.example.com", 5432, listed, resolving(never))


@pytest.mark.law("N19")
@pytest.mark.parametrize("own", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_reached_only_by_its_own_entry(own: str) -> None:
    with pytest.raises(AdapterRefused):
        addresses_of("db.example.com", 1, LISTS_EVERYTHING, resolving(own))
    for entry in ("127.0.0.0/8,::1", "db.example.com"):
        assert addresses_of("db.example.com", 1, entry.split(","), resolving(own)) == [own]


@pytest.mark.law("N19")
@pytest.mark.parametrize(
    ("host", "listed", "address", "is_open"),
    [
        ("db.internal", ("10.1.0.0/16",), "10.1.2.3", True),
        ("db.internal", ("10.1.0.0/16",), "::ffff:10.1.2.3", True),
        ("db.internal", ("10.1.0.0/16",), "10.2.0.1", False),
        ("db.internal", ("10.1.2.3",), "10.1.2.3", True),
        ("db.internal", ("fd12::/16",), "fd12::1", True),
        ("db.internal", ("db.internal",), "10.2.0.1", True),
        ("DB.Internal.", ("db.internal",), "10.2.0.1", True),
        ("db.internal", ("*.internal",), "10.2.0.1", True),
        ("internal", ("*.internal",), "10.2.0.1", False),
        ("db.internal.evil.com", ("db.internal", "*.internal"), "10.2.0.1", False),
        ("10.1.2.3", ("10.1.2.3",), "10.1.2.3", True),
        ("evil.com", ("db.internal",), "10.1.2.3", False),
    ],
)
def test_private_address_is_reached_only_if_the_operator_lists_it(
    *, host: str, listed: tuple[str, ...], address: str, is_open: bool
) -> None:
    check_listed(listed)
    if is_open:
        assert addresses_of(host, 5432, listed, resolving(address)) == [address]
        return
    with pytest.raises(AdapterRefused):
        addresses_of(host, 5432, listed, resolving(address))


@pytest.mark.law("N19")
@pytest.mark.parametrize(
    "host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0", "localhost", "[::1]", "::1"]
)
def test_alternative_spellings_of_local_addresses_are_refused(host: str) -> None:
    """The system's own resolver reads them, as the drivers would."""
    with pytest.raises((AdapterRefused, AdapterUnreachable)):
        addresses_of(host, 5432, ("10.0.0.0/8", "0.0.0.0/0"))


NO_HOSTS = [
    "/var/run/postgresql", "@abstract", "a.example.com,127.0.0.1", ",", "fe80::1%eth0", "a b", "",
    "a\x00b", "a\nb", "user@host", "tcp://host", "%2Ftmp", "..\\pipe",
]  # fmt: skip


@pytest.mark.law("N19")
@pytest.mark.parametrize("host", NO_HOSTS)
def test_socket_path_or_host_list_is_refused_as_host(host: str) -> None:
    with pytest.raises(AdapterRefused, match="one name or one IP address"):
        addresses_of(host, 5432, (*ANYWHERE, host), resolving(PUBLIC))
    given_ = {
        "host": host, "database": "d", "user": "u", "password": "p", "tables": [{"name": "t"}],
    }  # fmt: skip
    for kind in (POSTGRES, MYSQL):
        with pytest.raises(ValidationFailed, match="host"):
            configured(kind, given_)
    action = {key: value for key, value in given_.items() if key != "tables"}
    with pytest.raises(ValueError, match="host"):
        PostgresActionSettings.model_validate(
            {**action, "statements": [{"name": "a", "sql": "SELECT 1"}]}
        )


@pytest.mark.law("N19")
@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql:///d", "postgresql:///d?host=/tmp", "postgresql://%2Ftmp/d", "dbname=d",
        "postgresql://a.example.com,127.0.0.1/d", "host=127.0.0.1,10.0.0.1 dbname=d",
        "postgresql://u:pw@127.0.0.1:5432,5433/d", "postgresql://u:pw@example.com:port/d",
        "postgresql://u:pw@127.0.0.1/d?nonsense=1", "postgresql://u:pw pw@127.0.0.1/d",
        "postgresql://u:pw@127.0.0.1/d", "postgresql://example.com/d?host=127.0.0.1",
        "postgresql://u:pw@[::1]/d",
    ],
)  # fmt: skip
def test_connection_string_cannot_redirect_to_another_host(dsn: str) -> None:
    with pytest.raises(AdapterRefused) as refused:
        Postgres(dsn).connect()
    assert "pw" not in str(refused.value)


@pytest.mark.law("N19")
def test_checked_address_is_the_one_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads elsewhere the second time, and a second address in the URL."""
    names = iter([[PUBLIC], ["127.0.0.1"]])
    seen: list[Any] = []

    def resolve(*_: Any, **__: Any) -> Any:
        return [(0, 0, 0, "", (address, 0)) for address in next(names)]

    def connect(*_: Any, **given: Any) -> Any:
        seen.append((given["host"], given["hostaddr"], given["port"]))
        raise AdapterUnreachable("no")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("lakesync.systems.postgres.postgres_dialect.Timed.connect", connect)
    with pytest.raises(AdapterUnreachable):
        Postgres("postgresql://u@db.example.com/d?hostaddr=127.0.0.1").connect()
    assert seen == [("db.example.com", PUBLIC, 5432)]

    names = iter([[PUBLIC], ["127.0.0.1"]])

    def create(*given: Any) -> Any:
        seen.append(given)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", create)
    with pytest.raises(AdapterUnreachable):
        MySql("db.example.com", "u", "p", "d").connect()
    assert seen[-1][0] == (PUBLIC, 3306)


@pytest.mark.law("N19")
def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    asked: list[str] = []

    def connect(address: str, seconds: float) -> str:
        asked.append(address)
        assert 0 < seconds <= 9
        if address != "c":
            raise AdapterUnreachable("no")
        return address

    assert first_answer(["a", "b", "c"], connect, 9) == "c"
    with pytest.raises(AdapterUnreachable):
        first_answer(["a", "b", "d", "c"], connect, 9)
    assert asked == ["a", "b", "c", "a", "b", "d"]


@pytest.mark.law("N19")
@pytest.mark.parametrize("host", ["a" * 64 + ".example.com", "no-such-host.invalid", "a..b"])
def test_unresolvable_host_name_is_unreachable(host: str) -> None:
    with pytest.raises(AdapterUnreachable, match="cannot be resolved"):
        addresses_of(host, 5432, ())


@pytest.mark.law("N19")
@pytest.mark.parametrize(
    "entry", ["10.0.0.0/33", "10.0.0.1/16", "10.0.0", "*", "https://db", "a b", "*.", "db/16", ""]
)
def test_an_entry_that_is_neither_a_host_nor_a_network_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        check_listed([entry])
