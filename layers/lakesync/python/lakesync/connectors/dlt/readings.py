"""How one dlt resource is read: where reading may resume, and which rows are deletions.

Uses internals of dlt (the parts of a pipe) that may change; `requirements` pin its version, and the
contract suite is run against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dlt.common.configuration.container import Container
from dlt.common.configuration.resolve import inject_section
from dlt.common.pipeline import StateInjectableContext
from dlt.common.schema import Schema
from dlt.extract.incremental import Incremental
from dlt.extract.pipe_iterator import ManagedPipeIterator
from dlt.extract.source import (
    SourceInjectableContext,
    SourceSchemaInjectableContext,
    _DltSingleSource,
)

from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from dlt.extract import DltResource

    from lakesync.connectors.dlt.configuration import DltTable

MODIFIED: Final = "(modified)"
"""A key in rows read from a file: when the file was written. It is not a column."""


class Reading(NamedTuple):
    """How a resource is read."""

    resource: DltResource
    key: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Any]]
    """dlt's hints of columns, by name."""
    changed_at: str
    """The JSON path to a row's change time; empty if its rows have none."""
    is_incremental: bool
    is_ordered: bool
    """Its cursors are in order: reading may stop before the end, and resume there."""
    is_root: bool
    """Whether it does not depend on another resource, so that its state matches the rows that it
    returned."""
    is_whole: bool
    """What a reading lacks is gone: dlt's ``replace``."""
    cursor_path: str
    """The JSON path to the cursor that each row must have; empty if rows may lack one."""


def reading_of(resource: DltResource, table: DltTable) -> Reading:
    """Return how a resource is read.

    Raises:
        AdapterRefused: it cannot be read.
    """
    schema = resource.compute_table_schema()
    columns = {str(name): dict(hint) for name, hint in schema.get("columns", {}).items()}
    key = tuple(name for name, hint in columns.items() if hint.get("primary_key"))
    if not key:
        raise AdapterRefused(
            f"{table.name} has no primary key: name the columns that identify a row as "
            "primary_key, in its hints"
        )
    incremental = _incremental(resource)
    is_whole = resource.write_disposition == "replace"
    if incremental is not None and is_whole:
        raise AdapterRefused(
            f"{table.name} is read by incremental, and would replace what did not change: make its "
            "write_disposition merge"
        )
    cursor_path = ""
    if incremental is not None and incremental.on_cursor_value_missing == "raise":
        # A row without a cursor would end the reading of its table; see `Extraction`.
        incremental.on_cursor_value_missing = "include"
        cursor_path = "" if resource.is_transformer else str(incremental.cursor_path)
    return Reading(
        resource,
        key,
        columns,
        table.changed_at or _changed_at(resource, incremental),
        is_incremental=incremental is not None,
        is_ordered=incremental is not None and _ascends(incremental),
        is_root=resource._pipe.parent is None,  # noqa: SLF001 - as dlt's own extraction reads it
        is_whole=is_whole,
        cursor_path=cursor_path,
    )


def _incremental(resource: DltResource) -> Incremental[Any] | None:
    """Return the incremental of a resource, or of the first resource that it is made from."""
    step: Any = resource.incremental
    own: Incremental[Any] | None = getattr(step, "incremental", step)
    if own is None:
        arguments: Any = (resource.explicit_args if resource.args_bound else None) or {}
        own = next((each for each in arguments.values() if isinstance(each, Incremental)), None)
    parent: Any = resource._parent  # noqa: SLF001
    if own is None and parent is not None:
        return _incremental(parent)
    return own


def _changed_at(resource: DltResource, incremental: Incremental[Any] | None) -> str:
    """Return the field with its rows' change times; for a file's rows, when it was written."""
    if incremental is None:
        return ""
    path = str(incremental.cursor_path)
    if not resource.is_transformer:
        return path
    return MODIFIED if path == "modification_date" else ""


def _ascends(incremental: Incremental[Any]) -> bool:
    # A closed range: rows with the last cursor that were not given yet are read, too.
    return incremental.range_start == "closed" and incremental.row_order == "asc"


def pages_of(resource: DltResource, state: dict[str, Any]) -> Generator[list[Any], None, None]:
    """Yield what a resource yields, a list at a time; its state is kept up to that list.

    Args:
        resource: read once.
        state: dlt's state of pipelines, changed in place.
    """
    kept = StateInjectableContext(state=state)  # type: ignore[arg-type]  # a part of dlt's
    section = resource._get_config_section_context()  # noqa: SLF001 - as DltResource.__iter__
    schema = Schema(section.source_state_key)
    source = _DltSingleSource(schema, resource.section, [resource])
    contexts = [
        kept,
        SourceInjectableContext(source),
        SourceSchemaInjectableContext(source.discover_schema()),
    ]
    container = Container()
    with (
        inject_section(section),
        container.injectable_context(contexts[0]),
        container.injectable_context(contexts[1]),
        container.injectable_context(contexts[2]),
    ):
        # First in, first out: a parent's page is read completely before its next.
        pipes: Any = ManagedPipeIterator.from_pipes([resource._pipe], next_item_mode="fifo")  # noqa: SLF001
    pipes.set_context([*contexts, section])
    try:
        for each in pipes:
            yield _rows_in(each.item)
    finally:
        pipes.close()


def _rows_in(item: Any) -> list[Any]:
    item = getattr(item, "data", item) if type(item).__name__ == "DataItemWithMeta" else item
    if hasattr(item, "to_pylist"):  # an Arrow table
        return list(item.to_pylist())
    return list(item) if isinstance(item, list | tuple) else [item]
