"""One table over many gateways, by choice: which tables it is of, and the columns that it has.

A share is a view, so nothing of a gateway meets another's: ``docs/adr/0033-shared-tables.md``. What
it is over stands in a document, which the job keeps in step with the tables it makes. Law L24:
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
"""Where the documents of shares lie in the lake's bucket."""
NAME_CHARACTERS_MAX: Final = 100
"""Of a share's name."""
PATTERN_CHARACTERS_MAX: Final = 256
"""Of the pattern of its gateways."""
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
    """Whether no update brings a deleted row back."""

    def viewed(self) -> ViewedTable:
        """Give the table as its views need it; a comment is the table's alone."""
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
    """One that holds the values of all: `lakesync.core.column_types` has them."""
    types: Mapping[str, LakeColumn]
    """What it is in the tables that have it, by gateway."""

    @property
    def is_text_of_others(self) -> bool:
        """Whether it is text because the tables do not agree."""
        return self.type == _TEXT and any(
            one.type not in {_TEXT, "null"} for one in self.types.values()
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A table that is shared: its name, of which tables it is, and those that there are."""

    name: str
    table: str
    """On the wire, at each gateway."""
    gateways: str = "*"
    """A pattern: ``*`` any characters, ``?`` one, ``[ab]`` one of them."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """By gateway."""

    def wants(self, gateway: str, table: str) -> bool:
        """Tell whether a gateway's table is one of those that it is over."""
        return folded(table) == folded(self.table) and fnmatchcase(gateway, self.gateways)

    def with_member(self, gateway: str, member: Member) -> Share:
        """Give it with a gateway's table, as that is now."""
        return replace(self, members={**self.members, gateway: member})

    def without(self, gateway: str) -> Share:
        """Give it without a gateway."""
        left = {name: one for name, one in self.members.items() if name != gateway}
        return replace(self, members=left)

    def columns(self) -> tuple[SharedColumn, ...]:
        """Give its columns: those of all tables, in the order in which they joined it."""
        by_written: dict[str, dict[str, LakeColumn]] = {}
        for gateway, member in self.members.items():
            for column in member.columns:
                by_written.setdefault(folded(column.written), {})[gateway] = column
        taken: set[str] = set()
        shared = []
        for types in by_written.values():
            first = next(iter(types.values()))
            # What one gateway calls it may be another column's name at another.
            names = chain(
                (one.name for one in types.values()), (f"{first.name}_{n}" for n in count(2))
            )
            name = next(one for one in names if one not in taken)
            taken.add(name)
            kind = common_type(one.type for one in types.values())
            shared.append(SharedColumn(name, first.written, kind, types))
        return tuple(shared)

    def as_json(self) -> bytes:
        """Give its document."""
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
    """Read a document. What another release wrote beside it is passed over."""
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
    """Give where a share's document lies."""
    return f"{SHARES}{name}.json"


def share_name(key: str) -> str:
    """Give the name of the share whose document lies there."""
    return key.removeprefix(SHARES).removesuffix(".json")


def shared_database(prefix: str) -> str:
    """Give the catalogue's database of shares: no gateway's, as none of these begins with ``_``."""
    return f"{prefix}__shared"


def check_share(share: Share) -> None:
    """Check what somebody declares.

    Raises:
        ValidationFailed: it cannot be; all faults are said at once.
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
    """Give a type that holds the values of all: the widest where Iceberg would widen, else text."""
    common = "null"
    for kind in types:
        if widens(common, kind):
            common = kind
        elif not widens(kind, common):
            common = _wider_decimal(common, kind) or _TEXT
    return common


def _wider_decimal(one: str, other: str) -> str:
    """Give nothing where a scale would have to change: Iceberg widens the precision alone."""
    first, second = precision_scale(one), precision_scale(other)
    if first is None or second is None or first[1] != second[1]:
        return ""
    return f"decimal({max(first[0], second[0])},{first[1]})"
