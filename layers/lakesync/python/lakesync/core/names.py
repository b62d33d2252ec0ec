"""Names of tables and columns: which are allowed, which are the same, their names in the lake.

SQLite, Iceberg and Athena fold case, so names that differ only in case are the same name. Among a
gateway's tables, and among a table's columns, the first spelling stands and any other is refused.
In the lake a name is written in words: ``dueDate`` is ``due_date``. If two names become the same
(``due_date`` existed before), the later one gets a short digest. So do names that clash with
LakeSync's own: columns that begin with ``_``, tables that end in one of `KEPT_SUFFIXES`.
Law S5: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lakesync.errors import NameTaken, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHANGES_SUFFIX: Final = "__changes"
ROWS_SUFFIX: Final = "__rows"
"""The suffix of the view of a table's rows."""
LIVE_SUFFIX: Final = "__live"
"""The suffix of the view that also shows what waits for a merge."""
KEPT_SUFFIXES: Final = (CHANGES_SUFFIX, ROWS_SUFFIX, LIVE_SUFFIX)
"""The suffixes that LakeSync appends to a table's name for its own tables and views."""
_FLOWS: Final = "flow"
"""What follows the prefix in the names of databases that flows write."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NO_TABLES: Final = "sqlite_"
"""How no table's name begins: SQLite and DuckDB have tables of their own that are named so."""
_SAFE = re.compile(r"[a-z][a-z0-9_]*")
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""The end of a word without a ``_``: ``due|Date``, ``HTTP|Server``."""


@lru_cache(maxsize=4096)
def is_identifier(name: str) -> bool:
    """Return whether text may name a table or a column."""
    return _IDENTIFIER.fullmatch(name) is not None


def check_identifier(name: str, field: str) -> str:
    """Return the name if it may name a table or a column.

    Raises:
        ValidationFailed: it is not a letter or ``_``, then letters, digits, ``_``: at most 64.
    """
    if not is_identifier(name):
        raise ValidationFailed(
            f"{name[:80]!r} is not a name: a letter or _, then letters, digits or _, at most 64",
            field=field,
        )
    return name


@lru_cache(maxsize=4096)
def is_table_name(name: str) -> bool:
    """Return whether text may name a table: a name that does not begin with ``sqlite_``."""
    return is_identifier(name) and not folded(name).startswith(_NO_TABLES)


def check_table_name(name: str, field: str) -> str:
    """Return the name if it may name a table.

    Raises:
        ValidationFailed: it is not a name, or begins with ``sqlite_`` in any spelling.
    """
    if not is_table_name(check_identifier(name, field)):
        raise ValidationFailed(
            f"{name!r} is not a table's name: those that begin with {_NO_TABLES} are SQLite's own",
            field=field,
        )
    return name


def folded(name: str) -> str:
    """Return the form by which names are compared: lower case, as names are ASCII."""
    return name.lower()


def first_spellings(names: Iterable[str]) -> dict[str, str]:
    """Return the spelling that stands for each name, by the name's folded form."""
    spellings: dict[str, str] = {}
    for name in names:
        spellings.setdefault(folded(name), name)
    return spellings


def name_taken(name: str, first: str, of: str) -> NameTaken:
    """Return the error for a name that exists under another spelling.

    Args:
        name: as received.
        first: the spelling that stands.
        of: what it names: ``table``, or ``column``.
    """
    return NameTaken(
        f"the {of} {name} is there already, spelled {first}: names that differ in case alone are "
        "one name; use that spelling",
        field=name if of == "column" else of,
    )


def staged_column(name: str) -> str:
    """Return the name of a column in a batch's object: unique, and derived from the name alone."""
    return _lake_name(folded(name), "c")


def lake_columns(names: Iterable[str], taken: Mapping[str, str]) -> dict[str, str]:
    """Return the lake's names of a table's columns, by the names on the wire.

    Names in use stay, whatever is added later. If new names become the same, a name that is already
    written in words takes precedence, then the first by folded form: the result does not depend on
    the order of the names.

    Args:
        names: the columns', on the wire.
        taken: the lake's names that the table already uses, by the folded name on the wire.
    """
    chosen = dict(taken)
    used = set(taken.values())
    given = sorted(names, key=lambda name: (in_words(name) != folded(name), folded(name)))
    for name in given:
        if folded(name) in chosen:
            continue
        plain, digested = lake_name_choices(name, "c")
        chosen[folded(name)] = digested if plain in used else plain
        used.add(chosen[folded(name)])
    return {name: chosen[folded(name)] for name in given}


def lake_tables(name: str) -> tuple[str, str]:
    """Get the lake's names that a table may have: its own, and the one to use if that is taken."""
    if folded(name).endswith(KEPT_SUFFIXES) or in_words(name).endswith(KEPT_SUFFIXES):
        return (_digested(folded(name), "t"),) * 2
    return lake_name_choices(name, "t")


def lake_name_choices(name: str, kind: str) -> tuple[str, str]:
    """Return a name in words, and the one with a digest; the latter twice if it needs a digest."""
    digested = _digested(folded(name), kind)
    plain = in_words(name)
    return (plain if _is_plain(plain, kind) else digested, digested)


def in_words(name: str) -> str:
    """Return a name in lower case, its words joined by ``_``."""
    return _WORD_ENDS.sub("_", name).lower()


def lake_database(prefix: str, gateway: str) -> str:
    """Return the catalogue database of a gateway: each has its own, so that tenants stay apart.

    Gateways whose ids differ only in case are two gateways.
    """
    return f"{prefix}_{_lake_name(gateway, 'g')}"


def flow_database(prefix: str, keeper: str) -> str:
    """Return the catalogue database of a flow's own tables, apart from those of gateways.

    Args:
        prefix: the prefix of all names of databases.
        keeper: ``GATEWAY/FLOW``.
    """
    return lake_database(f"{prefix}_{_FLOWS}", keeper)


def is_flow_database(prefix: str, database: str) -> bool:
    """Return whether a database is a flow's: because of the slash, their names have a digest."""
    return bool(re.fullmatch(rf"{re.escape(prefix)}_{_FLOWS}_g_.*_[0-9a-f]{{10}}", database))


def _lake_name(name: str, kind: str) -> str:
    return name if _is_plain(name, kind) else _digested(name, kind)


def _is_plain(name: str, kind: str) -> bool:
    # A safe name that looks digested is digested too; it could else equal another name's digest.
    looks_digested = rf"({_FLOWS}_)?{kind}_.*_[0-9a-f]{{10}}"
    return bool(_SAFE.fullmatch(name)) and not re.fullmatch(looks_digested, name)


def _digested(name: str, kind: str) -> str:
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_")
    return f"{kind}_{plain}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"
