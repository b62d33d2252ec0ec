"""In which order a snapshot reads its tables, as its token says.

A client begins a snapshot by ``begin``, or by ``begin:todos,notes`` to have these tables first. The
words of each page name the order again, and the table that comes next; so an order stands until the
snapshot ends, whatever the app asks for meanwhile, and whoever has the words knows what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.core.delta import check_identifier
from lakesync.core.messages import SNAPSHOT
from lakesync.core.names import folded
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST_TABLES_MAX: Final = 32
"""Tables that one client may have first; each page's words name them."""
ALL_TABLES: Final = "all"
"""What the words say of a snapshot that reads all tables."""
WORDS_FIELDS: Final = 5
"""Fields of a page's words that say what was read; what follows them is the gateway's alone."""
Place: TypeAlias = "tuple[int, str]"


def checked_first(tables: Iterable[str], field: str = "first_tables") -> tuple[str, ...]:
    """Give tables to be read first, each once, in their order.

    Raises:
        ValidationFailed: one is no table's name, or they are too many.
    """
    given = [tables] if isinstance(tables, str) else list(tables)
    first = tuple({folded(check_identifier(name, field)): name for name in given}.values())
    if len(first) > FIRST_TABLES_MAX:
        raise ValidationFailed(
            f"{len(first)} tables cannot all come first: name {FIRST_TABLES_MAX} at the most",
            field=field,
        )
    return first


def begin_words(first: tuple[str, ...]) -> str:
    """Give what asks for all rows as they are, those of some tables first."""
    return f"{SNAPSHOT}:{','.join(first)}" if first else SNAPSHOT


def begins(words: str) -> bool:
    """Tell whether words begin a snapshot."""
    return words.partition(":")[0] == SNAPSHOT


def first_of(words: str) -> tuple[str, ...]:
    """Give the tables that come first, by what `begin_words` gave, or ``all`` in place of begin.

    Raises:
        ValidationFailed: they are no tables' names, or too many.
    """
    names = words.partition(":")[2]
    return checked_first(names.split(","), "snapshot") if names else ()


def has_any_of(first: tuple[str, ...], tables: Iterable[str]) -> bool:
    """Tell whether any of the tables that come first is among some, in whatever spelling."""
    return not {*map(folded, first)}.isdisjoint(map(folded, tables))


def reads_all_tables(words: str) -> bool:
    """Tell whether a page's words are of a snapshot of all tables, and not of some of them."""
    fields = words.split("|", 2)
    return len(fields) > 1 and fields[1].partition(":")[0] == ALL_TABLES


def place_by(first: tuple[str, ...]) -> Callable[[str], Place]:
    """Give what puts tables in order: those that come first, then the others by name."""
    places = {folded(name): place for place, name in enumerate(first)}
    return lambda table: (places.get(folded(table), len(places)), table)


def tables_read(words: str, known: Iterable[str]) -> frozenset[str]:
    """Give those of some tables, and of those that come first, that a snapshot has read to the end.

    Words of another form, as another release may write them, tell of no table.

    Args:
        words: what the last page said of where the snapshot goes on.
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
