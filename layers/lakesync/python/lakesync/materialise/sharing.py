"""Shares: one table over many gateways, by declaration, as views that are kept in step.

A share is a view, so the data of gateways stay apart: ``docs/adr/0033-shared-tables.md``. Its
members are in a document, which the job keeps in step with the tables that it makes, and with their
columns.

    1. the document names the table as it is now     one conditional write
    2. the catalogue's views are made to match       compared, and replaced where they differ
    3. the document is unchanged                     else 2 again

Concurrent runs, and declarations of shares, are ordered by 1. By 3, the last one in 2 has read the
latest document. If a run is killed in between, the next one compares and corrects. A fault of a
share never stops a batch.

A view has one branch for each gateway, identified by a constant in ``_gateway``. ``flights`` shows
the tables as they are, with tombstones and LakeSync's own columns. ``flights__rows`` and
``flights__live`` show, over all gateways, what the views of each gateway's table show. A query for
one ``_gateway`` reads only that branch. Law L24: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.core.column_types import precision_scale, widens
from lakesync.core.names import KEPT_SUFFIXES, LIVE_SUFFIX, ROWS_SUFFIX, folded
from lakesync.core.wording import plural
from lakesync.errors import Conflict, LakeSyncError, ValidationFailed
from lakesync.materialise.lake_schema import (
    CLIENT,
    COMMIT_STAMP,
    HLC,
    ID,
    IS_DELETED,
    KINDS,
    STATE_TABLE,
    SYNCED_AT,
    UPDATED_AT,
    LakeColumn,
)
from lakesync.materialise.views import (
    DIALECTS,
    TEXT_CHARACTERS_MAX,
    View,
    ViewedTable,
    sql_text,
    table_input,
    views_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lakesync.materialise.views import Dialect, GlueViews
    from lakesync.materialise.work_queue import LakeStore

# --- declarations ---------------------------------------------------------------------------------


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
        return folded(table) == folded(self.table) and fnmatchcase(gateway, self.gateways)

    def with_member(self, gateway: str, member: Member) -> Share:
        return replace(self, members={**self.members, gateway: member})

    def without(self, gateway: str) -> Share:
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
    return f"{SHARES}{name}.json"


def share_name(key: str) -> str:
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


# --- views ----------------------------------------------------------------------------------------


GATEWAY_COLUMN: Final = "_gateway"
"""The gateway of a row; no table's own column begins with ``_``."""
QUERY_BYTES_MAX: Final = 262_144
"""Size of a share's view: Athena's limit for the text of a query, so that anybody may make it."""
OWN_COLUMNS: Final = {
    UPDATED_AT: "timestamp", COMMIT_STAMP: "integer", SYNCED_AT: "timestamp",
    IS_DELETED: "boolean", HLC: "integer", CLIENT: "string",
}  # fmt: skip
"""LakeSync's own columns that a share shows; those that only a merge reads stay in the tables."""
_SENTENCES: Final = {
    "": "All rows of all gateways, with tombstones and what LakeSync knows of a row",
    ROWS_SUFFIX: "The rows that exist, of all gateways, without LakeSync's own columns",
    LIVE_SUFFIX: "The rows that exist, of all gateways, with changes that wait to be merged",
}


def shared_views(share: Share, engine: str, catalogue: str = "") -> Iterator[View]:
    """Yield the views of a share, in the SQL of an engine of `DIALECTS`; none without tables.

    Args:
        catalogue: the engine's name of the tables' catalogue, if it is needed.
    """
    if not share.members:
        return
    dialect = DIALECTS[engine]
    columns = share.columns()
    head = ((GATEWAY_COLUMN, "string"), (ID, "string"))
    shown = (*head, *((column.name, column.type) for column in columns))
    for suffix, sentence in _SENTENCES.items():
        own = {} if suffix else OWN_COLUMNS
        branches = (
            _branch(gateway, member, columns, dialect, suffix, catalogue)
            for gateway, member in share.members.items()
        )
        yield View(
            share.name + suffix, (*shown, *own.items()), " UNION ALL ".join(branches), sentence
        )


def as_viewed(share: Share, database: str, stack: str) -> ViewedTable:
    comments = {GATEWAY_COLUMN: "The id of the gateway whose row it is"}
    return ViewedTable(database, share.name, STATE_TABLE, (), stack, comments)


def without_live(share: Share) -> tuple[str, ...]:
    """Return the gateways whose table is too wide for a live view in the catalogue."""
    wide = []
    for gateway, member in sorted(share.members.items()):
        table = member.viewed()
        texts = (table_input(table, view)["ViewOriginalText"] for view in views_of(table, "athena"))
        if any(len(text) > TEXT_CHARACTERS_MAX for text in texts):
            wide.append(gateway)
    return tuple(wide)


def size_fault(share: Share) -> str:
    """Return why a share exceeds what a view can cover; empty if it does not."""
    table = as_viewed(share, "shared", "")
    for view in shared_views(share, "athena"):
        size, text = len(view.select.encode()), len(table_input(table, view)["ViewOriginalText"])
        share_of_it = max(size / QUERY_BYTES_MAX, text / TEXT_CHARACTERS_MAX)
        if share_of_it > 1:
            number = len(share.members)
            return (
                f"a view over {plural(number, 'gateway')} of "
                f"{plural(len(share.columns()), 'column')} takes {size:,} bytes, and may have "
                f"{QUERY_BYTES_MAX:,}: about {int(number / share_of_it)} "
                "gateways fit; name fewer by a pattern"
            )
    return ""


def _branch(
    gateway: str,
    member: Member,
    columns: tuple[SharedColumn, ...],
    dialect: Dialect,
    suffix: str,
    catalogue: str,
) -> str:
    values = [f"{sql_text(gateway)} AS {dialect.name(GATEWAY_COLUMN)}", dialect.name(ID)]
    values += [_value(column, gateway, dialect, of_view=bool(suffix)) for column in columns]
    if suffix:
        # Events have no waiting changes: they have only this view.
        view = suffix if KINDS[member.kind] is STATE_TABLE else ROWS_SUFFIX
        source = dialect.name(member.database, member.table + view)
    else:
        values += [_own_value(name, member, dialect) for name in OWN_COLUMNS]
        place = [part for part in (catalogue, member.database) if part]
        source = dialect.name(*place, member.table)
    return f"SELECT {', '.join(values)} FROM {source}"  # noqa: S608 - quoted


def _value(column: SharedColumn, gateway: str, dialect: Dialect, *, of_view: bool) -> str:
    name = dialect.name(column.name)
    there = column.types.get(gateway)
    if there is None:
        return f"CAST(NULL AS {dialect.type_name(column.type)}) AS {name}"
    value = own = dialect.name(there.name)
    if there.type == "timestamp" and not of_view:
        value = dialect.instant.format(value=value)
    wanted = dialect.type_name(column.type)
    if there.type == "bytes" != column.type:
        value = dialect.encoded.format(value=value)
    elif dialect.type_name(there.type) != wanted:
        value = f"CAST({value} AS {wanted})"
    return value if value == own == name else f"{value} AS {name}"


def _own_value(name: str, member: Member, dialect: Dialect) -> str:
    quoted, kind = dialect.name(name), OWN_COLUMNS[name]
    if KINDS[member.kind] is not STATE_TABLE and name == IS_DELETED:
        return f"FALSE AS {quoted}"
    if KINDS[member.kind] is not STATE_TABLE and name == UPDATED_AT:
        return f"CAST(NULL AS {dialect.type_name(kind)}) AS {quoted}"
    return dialect.shown(name, kind)


# --- keeping them in step -------------------------------------------------------------------------


TRIES_MAX: Final = 20
"""How often another writer may be first, before a change of a share is given up."""


class Shares:
    def __init__(self, store: LakeStore) -> None:
        self._store = store
        self._known: dict[str, tuple[str, Share]] = {}

    def all(self) -> list[Share]:
        """Return all of them, by name: one listing, and those that changed since the last."""
        etags = self._store.etags(SHARES)
        shares = []
        for key in sorted(etags):
            known = self._known.get(key)
            share = known[1] if known and known[0] == etags[key] else self.read(share_name(key))
            if share is not None:
                shares.append(share)
        return shares

    def read(self, name: str) -> Share | None:
        return self._read(name)[0]

    def change(self, name: str, to: Callable[[Share | None], Share | None]) -> Share | None:
        """Change a share's document, even under concurrent changes; give the new one.

        Args:
            to: gives the new document from the present one; called again if another writer was
                first.

        Raises:
            Conflict: another writer was first too often.
        """
        for _ in range(TRIES_MAX):
            share, etag = self._read(name)
            wanted = to(share)
            if wanted is None or wanted == share:
                return wanted
            if self._store.put_if_unchanged(share_key(name), wanted.as_json(), etag) is not None:
                return wanted
        raise Conflict(f"the share {name} is being changed by others; try again")

    def remove(self, name: str) -> None:
        self._store.delete(share_key(name))

    def _read(self, name: str) -> tuple[Share | None, str | None]:
        key = share_key(name)
        stored = self._store.read(key)
        if stored is None:
            self._known.pop(key, None)
            return None, None
        share = share_of(key, stored.body)
        self._known[key] = stored.etag, share
        return share, stored.etag


class SharedViews:
    """The views of shares in the Glue Data Catalog."""

    def __init__(self, glue: GlueViews, shares: Shares, prefix: str, stack: str) -> None:
        self._glue = glue
        self._shares = shares
        self._database = shared_database(prefix)
        self._stack = stack

    def keep(self, name: str) -> Mapping[str, str]:
        """Make a share's views match its document. Idempotent, and safe in parallel.

        Returns:
            By view, why it is not as it should be.
        """
        for _ in range(TRIES_MAX):
            share = self._shares.read(name)
            if share is None or not share.members:
                return {}
            faults = self._keep(share)
            if self._shares.read(name) == share:
                return faults
        return {name: "its tables change all the time"}

    def wrong(self, share: Share) -> Mapping[str, str]:
        if fault := size_fault(share):
            return {share.name: fault}
        viewed = as_viewed(share, self._database, self._stack)
        return self._glue.these_wrong(viewed, shared_views(share, "athena"))

    def drop(self, share: Share) -> None:
        """Remove the views of a share, except those that somebody else made. Idempotent."""
        self._glue.drop_these(
            as_viewed(share, self._database, self._stack),
            [share.name + suffix for suffix in ("", ROWS_SUFFIX, LIVE_SUFFIX)],
        )

    def _keep(self, share: Share) -> Mapping[str, str]:
        if fault := size_fault(share):
            return {share.name: fault}
        viewed = as_viewed(share, self._database, self._stack)
        views = {view.name: view for view in shared_views(share, "athena")}
        faults: dict[str, str] = {}
        if wide := without_live(share):
            del views[share.name + LIVE_SUFFIX]
            faults[share.name + LIVE_SUFFIX] = f"the table of {wide[0]} is too wide for one"
        self._glue.make_database(self._database, "LakeSync: tables that are shared by gateways")
        return faults | dict(self._glue.keep_these(viewed, views.values()))


class KeptViews:
    """The views of tables, and of the shares to which they belong: `ViewCatalogue` of a run."""

    def __init__(self, glue: GlueViews | None, shares: Shares, prefix: str, stack: str) -> None:
        self._glue = glue
        self._shares = shares
        self._views = None if glue is None else SharedViews(glue, shares, prefix, stack)
        self._place = shared_database(prefix)
        self._kept: dict[str, Share] = {}
        self._one = Lock()

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        faults = {} if self._glue is None else dict(self._glue.keep(table))
        try:
            with self._one:  # tables of a share are processed in parallel
                for share in self._shares.all():
                    if share.wants(table.gateway, table.written):
                        faults |= self._keep_share(share, table.gateway, member_of(table))
        except (BotoCoreError, ClientError, LakeSyncError, LookupError, ValueError) as error:
            faults["shares"] = f"{type(error).__name__}: {error}"
        return faults

    def _keep_share(self, share: Share, gateway: str, member: Member) -> Mapping[str, str]:
        def joined(current: Share | None) -> Share | None:
            if current is None or current.members.get(gateway) == member:
                return current
            return current.with_member(gateway, member)

        now = self._shares.change(share.name, joined)
        if now is None or self._views is None or self._kept.get(share.name) == now:
            return {}
        self._kept[share.name] = now  # a fault is reported once in a run, and again by the next run
        faults = self._views.keep(share.name)
        return {f"{self._place}.{view}": fault for view, fault in faults.items()}


def member_of(table: ViewedTable) -> Member:
    return Member(
        table.database, table.name, table.kind.name, table.columns, delete_wins=table.delete_wins
    )
