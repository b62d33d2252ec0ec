"""One table over many gateways, by declaration: its member tables, and its columns.

A share is a view, so the data of gateways stay apart: ``docs/adr/0033-shared-tables.md``. Its
members are in a document, which the job keeps in step with the tables that it makes. Law L24:
``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.column_types import precision_scale, widens
from lakesync.core.names import KEPT_SUFFIXES, folded
from lakesync.errors import ValidationFailed
from lakesync.materialise.columns import LakeColumn
from lakesync.materialise.shape import KINDS
from lakesync.materialise.views import ViewedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARES: Final = "shares/"
"""The prefix of the documents of shares in the lake's bucket."""
NAME_CHARACTERS_MAX: Final = 100
"""Length of a share's name."""
PATTERN_CHARACTERS_MAX: Final = 256
"""Length of the pattern of its gateways."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_TEXT: Final = "string"


class Member(NamedTuple):
    """One gateway's table in a share."""

    database: str
    table: str
    """In the lake."""
    kind: str
    """``state`` or ``events``."""
    columns: tuple[LakeColumn, ...]
    delete_wins: bool = False
    """Whether no update restores a deleted row."""

    def viewed(self) -> ViewedTable:
        """Return the table as its views need it; comments belong to the table alone."""
        kind = KINDS[self.kind]
        return ViewedTable(
            self.database, self.table, kind, self.columns, "", {}, delete_wins=self.delete_wins
        )


class SharedColumn(NamedTuple):
    """A column of a share."""

    name: str
    """In the lake."""
    written: str
    type: str
    """A type that holds the values of all: one of `lakesync.core.column_types`."""
    types: Mapping[str, LakeColumn]
    """By gateway, the column in each table that has it."""

    @property
    def is_text_of_others(self) -> bool:
        """Whether it is text because the tables disagree."""
        return self.type == _TEXT and any(
            one.type not in {_TEXT, "null"} for one in self.types.values()
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A shared table: its name, the declaration of its tables, and the existing ones."""

    name: str
    table: str
    """On the wire, at each gateway."""
    gateways: str = "*"
    """A pattern: ``*`` any characters, ``?`` one, ``[ab]`` one of them."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """By gateway."""

    def wants(self, gateway: str, table: str) -> bool:
        """Return whether a gateway's table belongs to it."""
        return folded(table) == folded(self.table) and fnmatchcase(gateway, self.gateways)

    def with_member(self, gateway: str, member: Member) -> Share:
        """Return it with a gateway's table in its present form."""
        return replace(self, members={**self.members, gateway: member})

    def without(self, gateway: str) -> Share:
        """Return it without a gateway."""
        left = {name: one for name, one in self.members.items() if name != gateway}
        return replace(self, members=left)

    def columns(self) -> tuple[SharedColumn, ...]:
        """Return its columns: those of all tables, in the order in which they were added."""
        by_written: dict[str, dict[str, LakeColumn]] = {}
        for gateway, member in self.members.items():
            for column in member.columns:
                by_written.setdefault(folded(column.written), {})[gateway] = column
        taken: set[str] = set()
        shared = []
        for types in by_written.values():
            first = next(iter(types.values()))
            # A name at one gateway may be another column's name at another.
            names = chain(
                (one.name for one in types.values()), (f"{first.name}_{n}" for n in count(2))
            )
            name = next(one for one in names if one not in taken)
            taken.add(name)
            kind = common_type(one.type for one in types.values())
            shared.append(SharedColumn(name, first.written, kind, types))
        return tuple(shared)

    def as_json(self) -> bytes:
        """Return its document."""
        members = {
            gateway: {
                "database": one.database,
                "table": one.table,
                "kind": one.kind,
                "columns": [[c.name, c.type, c.written] for c in one.columns],
                "deleteWins": one.delete_wins,
            }
            for gateway, one in self.members.items()
        }
        said = {"table": self.table, "gateways": self.gateways, "members": members}
        return json.dumps(said, separators=(",", ":")).encode()


def share_of(key: str, document: bytes) -> Share:
    """Read a document. Fields of other releases are ignored."""
    said: Any = json.loads(document)
    members = {
        gateway: Member(
            one["database"],
            one["table"],
            one["kind"],
            tuple(LakeColumn(*column[:3]) for column in one["columns"]),
            one["deleteWins"],
        )
        for gateway, one in said["members"].items()
    }
    return Share(share_name(key), said["table"], said["gateways"], members)


def share_key(name: str) -> str:
    """Return the key of a share's document."""
    return f"{SHARES}{name}.json"


def share_name(key: str) -> str:
    """Return the name of the share with a document's key."""
    return key.removeprefix(SHARES).removesuffix(".json")


def shared_database(prefix: str) -> str:
    """Return the catalogue's database of shares: it begins with ``_``, which no gateway's does."""
    return f"{prefix}__shared"


def check_share(share: Share) -> None:
    """Check a declaration.

    Raises:
        ValidationFailed: it is not valid; names every fault.
    """
    faults = []
    name = share.name
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
        faults.append(
            f"the name {name[:40]!r} is not of a-z, 0-9 and _, beginning with a letter, "
            f"{NAME_CHARACTERS_MAX} characters at most"
        )
    if name.endswith(KEPT_SUFFIXES):
        faults.append(f"the name ends with one of {', '.join(KEPT_SUFFIXES)}")
    if not 0 < len(share.gateways) <= PATTERN_CHARACTERS_MAX:
        faults.append(f"the pattern of gateways has 1 to {PATTERN_CHARACTERS_MAX} characters")
    if faults:
        raise ValidationFailed("; ".join(faults), field="share")


def common_type(types: Iterable[str]) -> str:
    """Get a type that holds the values of all: the widest where Iceberg would widen, else text."""
    common = "null"
    for kind in types:
        if widens(common, kind):
            common = kind
        elif not widens(kind, common):
            common = _wider_decimal(common, kind) or _TEXT
    return common


def _wider_decimal(one: str, other: str) -> str:
    """Return nothing if a scale would have to change: Iceberg only widens the precision."""
    first, second = precision_scale(one), precision_scale(other)
    if first is None or second is None or first[1] != second[1]:
        return ""
    return f"decimal({max(first[0], second[0])},{first[1]})"
