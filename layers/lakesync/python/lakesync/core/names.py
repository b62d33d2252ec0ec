"""Names of tables and columns: which of them are one name, and what they are called in the lake.

SQLite, Iceberg and Athena fold case, so names that differ in it alone are one name: of a gateway's
tables, and of a table's columns, the first spelling stands and another is refused. In the lake a
name is written in words: ``dueDate`` is ``due_date``. Two names that are one so (``due_date`` was
there before) differ by a short digest of the later one, and so does what LakeSync keeps for
itself there: columns that begin with ``_``, tables that end in one of `KEPT_SUFFIXES`.
Law S5: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from lakesync.errors import NameTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHANGES_SUFFIX: Final = "__changes"
ROWS_SUFFIX: Final = "__rows"
"""What the name of the view of a table's rows ends with."""
LIVE_SUFFIX: Final = "__live"
"""The same of the view that shows what waits for a merge too."""
KEPT_SUFFIXES: Final = (CHANGES_SUFFIX, ROWS_SUFFIX, LIVE_SUFFIX)
"""What a table of LakeSync or a view ends with, behind the name of the table that it is of."""
_FLOWS: Final = "flow"
"""What the names of databases go on with that flows write."""
_SAFE = re.compile(r"[a-z][a-z0-9_]*")
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word ends though no ``_`` says so: ``due|Date``, ``HTTP|Server``."""


def folded(name: str) -> str:
    """Give what a name is one with: itself in lower case, as names are ASCII."""
    return name.lower()


def first_spellings(names: Iterable[str]) -> dict[str, str]:
    """Give the spelling that stands of each name, by its folded form."""
    spellings: dict[str, str] = {}
    for name in names:
        spellings.setdefault(folded(name), name)
    return spellings


def name_taken(name: str, first: str, of: str) -> NameTaken:
    """Give the error for a name that is there under another spelling.

    Args:
        name: as it came.
        first: the spelling that stands.
        of: what it names: ``table``, or ``column``.
    """
    return NameTaken(
        f"the {of} {name} is there already, spelled {first}: names that differ in case alone are "
        "one name; use that spelling",
        field=name if of == "column" else of,
    )


def staged_column(name: str) -> str:
    """Give the name of a column in a batch's object: by the name alone, and of one name alone."""
    return _lake_name(folded(name), "c")


def lake_columns(names: Iterable[str], taken: Mapping[str, str]) -> dict[str, str]:
    """Give the lake's names of a table's columns, by the names on the wire.

    Names that are taken stay, whatever comes later. Of new ones that meet, the one that is written
    in words already comes first, then the first by its folded form: whatever their order is.

    Args:
        names: the columns', on the wire.
        taken: the lake's names that the table has already, by the folded name on the wire.
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
    """Give the lake's names that a table may have: its own, and the one if another has that."""
    if folded(name).endswith(KEPT_SUFFIXES) or in_words(name).endswith(KEPT_SUFFIXES):
        return (_digested(folded(name), "t"),) * 2
    return lake_name_choices(name, "t")


def lake_name_choices(name: str, kind: str) -> tuple[str, str]:
    """Give a name in words, and the one with a digest; the latter twice where it must have one."""
    digested = _digested(folded(name), kind)
    plain = in_words(name)
    return (plain if _is_plain(plain, kind) else digested, digested)


def in_words(name: str) -> str:
    """Give a name in lower case, its words joined by ``_``."""
    return _WORD_ENDS.sub("_", name).lower()


def lake_database(prefix: str, gateway: str) -> str:
    """Give the catalogue database of a gateway: one for each, so that tenants stay apart.

    Gateways whose ids differ in case alone are two gateways.
    """
    return f"{prefix}_{_lake_name(gateway, 'g')}"


def flow_database(prefix: str, keeper: str) -> str:
    """Give the catalogue database of a flow's own tables, apart from those of gateways.

    Args:
        prefix: what all names of databases begin with.
        keeper: ``GATEWAY/FLOW``.
    """
    return lake_database(f"{prefix}_{_FLOWS}", keeper)


def is_flow_database(prefix: str, database: str) -> bool:
    """Tell whether a database is one of those: their names have a digest, for the slash."""
    return bool(re.fullmatch(rf"{re.escape(prefix)}_{_FLOWS}_g_.*_[0-9a-f]{{10}}", database))


def _lake_name(name: str, kind: str) -> str:
    return name if _is_plain(name, kind) else _digested(name, kind)


def _is_plain(name: str, kind: str) -> bool:
    # A safe name that looks digested is digested too: else it could be another name's digest.
    looks_digested = rf"({_FLOWS}_)?{kind}_.*_[0-9a-f]{{10}}"
    return bool(_SAFE.fullmatch(name)) and not re.fullmatch(looks_digested, name)


def _digested(name: str, kind: str) -> str:
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_")
    return f"{kind}_{plain}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"
