"""Converts a source's records to changes one by one: a bad one is a dead letter. Law N4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.http_answers import NOT_AS_DESCRIBED
from lakesync.connectors.port import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.connectors.port import Change


def changes_in(
    records: Iterable[Mapping[str, Any]],
    id_field: str,
    change_of: Callable[[str, Mapping[str, Any]], Change],
) -> tuple[list[Change], list[Unreadable]]:
    """Return records as changes, and those that violate the source's API.

    Args:
        records: the source's.
        id_field: the field with the id; a record without it makes the whole answer unreadable.
        change_of: makes the change from a row id and its record, or fails.
    """
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for record in records:
        row_id = str(record[id_field])
        try:
            changes.append(change_of(row_id, record))
        except NOT_AS_DESCRIBED as exc:
            unreadable.append(Unreadable(row_id, _why(exc)))
    return changes, unreadable


def _why(error: Exception) -> str:
    return f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
