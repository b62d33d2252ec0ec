"""How databases are reached over a network: at which hosts, and how encrypted.

Connectors, actions, flows and destinations connect to PostgreSQL and MySQL through here; the rule
for HTTP (`lakesync.connectors.http`) looks at addresses in the same way. Hosts are public
ones, and those that the operator lists.

Rules of this module
    1. An entry is a host, ``*.`` and a domain, an IP address or a network. What is public needs
       none.
    2. A host is resolved once, all its addresses are looked at, and what was looked at is what is
       connected to: a name that is given another address meanwhile changes nothing.
    3. Some addresses are never reached, listed or not: those at which a cloud gives credentials to
       whoever asks, and those that mean this machine without saying so.
    4. This machine is reached by its own name or network alone: 0.0.0.0/0 does not list it.

Encryption is one word for all databases:

- ``verify``: the server's certificate is valid, for the host that was named.
- ``encrypt``: nobody else can read it, but whoever answers may not be the server.
- ``off``: in the clear. MySQL's driver uses TLS, as with ``encrypt``, if the server offers it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lakesync.errors import AdapterRefused, AdapterUnreachable, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network
    Resolve = Callable[[str, int], Sequence[str]]

T = TypeVar("T")

NO_ANSWER: Final = "the function that reaches databases did not answer in time; try again"
"""Said of a question that was passed on, for want of an answer."""
ANYWHERE: Final = ("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")
"""For a program on its user's machine, which connects where the user says."""
ADDRESSES_TRIED_MAX: Final = 3
"""Addresses of one host that are connected to, one after another, until one answers."""
_NEVER: Final = tuple(
    map(ipaddress.ip_network, ("0.0.0.0/8", "169.254.0.0/16", "::/128", "fd00:ec2::/32"))
)
_LOOPBACK: Final = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses as IPv6 networks reach them (RFC 6052)."""
_HOST: Final = re.compile(r"[\w.:-]{1,253}")
"""No folder of a socket, no list of hosts, no zone of an address."""
_NAME: Final = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*")


def host_fault(host: str) -> str:
    """Return what is wrong with a database's host; empty if nothing is."""
    if _HOST.fullmatch(host):
        return ""
    return "a host is one name or one IP address: no folder of a socket, and no list"


def check_listed(entries: Sequence[str]) -> None:
    """Check the operator's list.

    Raises:
        ValueError: an entry is neither a host nor a network.
    """
    for entry in entries:
        if _network(entry) is None and not (_NAME.fullmatch(entry) and _is_name(entry)):
            raise ValueError(f"{entry} is no host, *.domain, IP address or network")


def resolved_addresses(host: str, port: int) -> Sequence[str]:
    """Return all IP addresses of a host.

    Raises:
        AdapterUnreachable: it has none, or nobody can tell.
    """
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as exc:  # ValueError: no name that DNS could have
        raise AdapterUnreachable(f"{host} cannot be resolved: {exc}") from exc
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def addresses_of(
    host: str, port: int, listed: Sequence[str], resolve: Resolve = resolved_addresses
) -> Sequence[str]:
    """Return the addresses at which a database's host may be connected to.

    Args:
        listed: the operator's entries.

    Raises:
        AdapterRefused: the host is none, or one of its addresses is neither public nor listed.
        AdapterUnreachable: it cannot be resolved.
    """
    if fault := host_fault(host):
        raise AdapterRefused(fault)
    addresses = resolve(host, port)
    if not addresses:
        raise AdapterUnreachable(f"{host} has no address")
    allowed = _Allowed.to(host.rstrip(".").lower(), listed)
    if not all(map(allowed.is_open, addresses)):
        raise AdapterRefused(
            f"{host} is neither public nor among the hosts that the operator of this stack lists "
            "for databases: ask for it to be listed in DatabaseHosts"
        )
    return addresses


def first_answer(addresses: Sequence[str], connect: Callable[[str, float], T], seconds: float) -> T:
    """Return the connection to the first address that answers.

    Args:
        addresses: of one host; of many, the first `ADDRESSES_TRIED_MAX`.
        connect: connects to an address within so many seconds, or raises AdapterUnreachable.
        seconds: how long it may take in all.

    Raises:
        AdapterUnreachable: none answers.
    """
    ends = time.monotonic() + seconds
    *tried, last = addresses[:ADDRESSES_TRIED_MAX]
    for number, address in enumerate(tried):
        with suppress(AdapterUnreachable):
            return connect(address, (ends - time.monotonic()) / (len(tried) + 1 - number))
    return connect(last, max(ends - time.monotonic(), 1))


def unanswered(title: str, host: str, port: int) -> AdapterUnreachable:
    """Return the one error for a server that refuses, closes, says nothing or something else.

    More would tell whoever may name a host which ports are open behind it.
    """
    return AdapterUnreachable(
        f"{title} cannot be reached: at {host}, port {port}, nothing answers in time as it does; "
        "look at the address, the firewalls between and the server"
    )


def is_named(host: str, listed: Sequence[str]) -> bool:
    """Return whether the operator lists a host by its name, or by its domain's."""
    return _Allowed.to(host.rstrip(".").lower(), listed).is_named


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, which nothing can lead elsewhere."""
    return _address(host) is not None


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet, whatever form it is written in."""
    ip = _address(address)
    if ip is None:
        return False
    # Site-local addresses (fec0::/10, RFC 3879) count as global for the standard library.
    is_site = getattr(ip, "is_site_local", False)
    within = ip.is_multicast or ip.is_reserved or is_site or not ip.is_global
    inner = _inner(ip)
    return not within and (inner is None or is_public(str(inner)))


class _Allowed(NamedTuple):
    """What the operator's entries allow to one host."""

    networks: Sequence[Network]
    is_spelled: bool
    """An entry is this very host."""
    is_named: bool
    """An entry is the host, or a domain that it is in."""

    @classmethod
    def to(cls, host: str, listed: Sequence[str]) -> _Allowed:
        names = [entry.lower() for entry in listed]
        domains = [entry[1:] for entry in names if entry.startswith("*.")]
        is_spelled = host in names
        is_named = is_spelled or host.endswith(tuple(domains))
        return cls([each for entry in names if (each := _network(entry))], is_spelled, is_named)

    def is_open(self, address: str) -> bool:
        """Return whether an address of the host may be connected to."""
        ip = _address(address)
        if ip is None or _is_within(ip, _NEVER) or _is_within(_inner(ip), _NEVER):
            return False
        if _is_within(ip, _LOOPBACK):
            own = [network for network in self.networks if _is_loopback(network)]
            return self.is_spelled or _is_within(ip, own)
        return self.is_named or is_public(address) or _is_within(ip, self.networks)


def _is_within(ip: Address | None, networks: Sequence[Network]) -> bool:
    return ip is not None and any(ip in network for network in networks)


def _is_loopback(network: Network) -> bool:
    return network[0].is_loopback and network[-1].is_loopback


def _address(text: str) -> Address | None:
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _inner(ip: Address) -> Address | None:
    """Return the IPv4 address to which an IPv6 address leads, if it leads to one."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _TRANSLATED:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.sixtofour
    return None


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _is_name(entry: str) -> bool:
    """Distinguish names from numbers: 10.0.0 would be the name of no host."""
    return not entry.rpartition(".")[2].isdigit()


# --- TLS ------------------------------------------------------------------------------------------


TLS_MODES: Final = ("verify", "encrypt", "off")
_SSLMODES: Final = {"verify": "verify-full", "encrypt": "require", "off": "disable"}


def read_tls(options: Mapping[str, Sequence[str]]) -> str:
    """Return the word that the query of a database's URL has; empty if it has none.

    Raises:
        ValidationFailed: it is another word.
    """
    mode = options.get("tls", [""])[0]
    if "tls" in options and mode not in TLS_MODES:
        raise ValidationFailed(f"tls in a database's URL is {', '.join(TLS_MODES)}", field="url")
    return mode


def context_of(mode: str, ca: str | None = None) -> ssl.SSLContext | None:
    """Return the context of a connection; None if TLS is not demanded.

    Args:
        ca: the file with the authorities' certificates; None for the system's.

    Raises:
        ValidationFailed: there is no such file.
    """
    if mode == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as exc:
        raise ValidationFailed("ca in a database's URL is no file of certificates") from exc
    if mode == "encrypt":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def libpq_options(mode: str, *, has_ca: bool) -> dict[str, str]:
    """Return the same for PostgreSQL's own library; nothing if no mode was named.

    Args:
        mode: one of `MODES`, or empty.
        has_ca: whether the connection string names the authorities itself.
    """
    if not mode:
        return {}
    # The library's build may look for the system's authorities elsewhere than the system does.
    roots = ssl.get_default_verify_paths().cafile or "system"
    is_systems = mode == "verify" and not has_ca
    return {"sslmode": _SSLMODES[mode]} | ({"sslrootcert": roots} if is_systems else {})
