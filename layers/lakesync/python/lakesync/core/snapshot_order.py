"""The order in which a snapshot reads its tables, as its token says.

A client begins a snapshot by ``begin``, or by ``begin:todos,notes`` to have these tables first. The
token of each page (its words) repeats the order, and names the next table. So the order stays the
same until the snapshot ends, whatever the app asks for meanwhile, and the words show what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.core.messages import SNAPSHOT
from lakesync.core.names import check_table_name, folded
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST_TABLES_MAX: Final = 32
"""Tables that one client may have first; the words of each page name them."""
ALL_TABLES: Final = "all"
"""The field of the words of a snapshot that reads all tables."""
WORDS_FIELDS: Final = 5
"""Fields of a page's words that say what was read; only the gateway reads those that follow."""
Place: TypeAlias = "tuple[int, str]"


def checked_first(tables: Iterable[str], field: str = "first_tables") -> tuple[str, ...]:
    """Return the tables to read first, without repeats, in their order.

    Raises:
        ValidationFailed: one is no table's name, or they are too many.
    """
    given = [tables] if isinstance(tables, str) else list(tables)
    first = tuple({folded(check_table_name(name, field)): name for name in given}.values())
    if len(first) > FIRST_TABLES_MAX:
        raise ValidationFailed(
            f"{len(first)} tables cannot all come first: name {FIRST_TABLES_MAX} at the most",
            field=field,
        )
    return first


def begin_words(first: tuple[str, ...]) -> str:
    """Return the words that ask for all rows as they are, with some tables first."""
    return f"{SNAPSHOT}:{','.join(first)}" if first else SNAPSHOT


def begins(words: str) -> bool:
    """Return whether words begin a snapshot."""
    return words.partition(":")[0] == SNAPSHOT


def first_of(words: str) -> tuple[str, ...]:
    """Return the tables that are read first, from `begin_words` or the same with ``all`` for begin.

    Raises:
        ValidationFailed: they are no tables' names, or too many.
    """
    names = words.partition(":")[2]
    return checked_first(names.split(","), "snapshot") if names else ()


def has_any_of(first: tuple[str, ...], tables: Iterable[str]) -> bool:
    """Return whether any of the first tables is among some tables, in any spelling."""
    return not {*map(folded, first)}.isdisjoint(map(folded, tables))


def reads_all_tables(words: str) -> bool:
    """Return whether a page's words belong to a snapshot of all tables, not only of some."""
    fields = words.split("|", 2)
    return len(fields) > 1 and fields[1].partition(":")[0] == ALL_TABLES


def place_by(first: tuple[str, ...]) -> Callable[[str], Place]:
    """Return the sort key of tables: those to be read first, then the others by name."""
    places = {folded(name): place for place, name in enumerate(first)}
    return lambda table: (places.get(folded(table), len(places)), table)


def tables_read(words: str, known: Iterable[str]) -> frozenset[str]:
    """Return the tables, of those known and those to be read first, that are read to the end.

    Words of an unknown form, which another release may write, show no table as read.

    Args:
        words: the last page's words, which say where the snapshot continues.
        known: other tables.
    """
    fields = words.split("|", 5)
    if len(fields) < WORDS_FIELDS:
        return frozenset()
    _, reads, _, _, table = fields[:WORDS_FIELDS]
    if reads.partition(":")[0] != ALL_TABLES:
        return frozenset(known)
    try:
        first = first_of(reads)
    except ValidationFailed:
        return frozenset()
    place_of = place_by(first)
    tables = {folded(name): name for name in (*first, *known)}.values()
    return frozenset(name for name in tables if not table or place_of(name) < place_of(table))
