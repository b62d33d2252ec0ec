"""lakesync.analysis.lake: the names of a lake table's columns, and its past."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lakesync.analysis.lake import history, written_columns, written_names
from lakesync.analysis.past import Moment


def test_lake_columns_map_back_to_their_names_on_the_wire() -> None:
    fields = [
        SimpleNamespace(name="_id", field_id=1),
        SimpleNamespace(name="due_date", field_id=2),
        SimpleNamespace(name="mine", field_id=7),
    ]
    table = SimpleNamespace(
        properties={"lakesync.columns": '{"2":["number","dueDate"],"3":["string","gone"]}'},
        schema=lambda: SimpleNamespace(fields=fields),
    )
    written = written_columns(table)

    assert written == {"due_date": "dueDate"}
    assert written_names(["_id", "due_date", "mine"], written) == ["_id", "dueDate", "mine"]
    assert written_columns(SimpleNamespace(properties={}, schema=table.schema)) == {}


def test_names_that_differ_only_in_case_keep_their_lake_names() -> None:
    assert written_names(["due", "c_due_1"], {"due": "due", "c_due_1": "Due"}) == ["due", "c_due_1"]


def snapshot(number: int, parent: int | None, mark: str | None) -> Any:
    properties = {"lakesync.commit": mark} if mark else {}
    return SimpleNamespace(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=number,
        summary=SimpleNamespace(additional_properties=properties),
    )


def table_of(snapshots: list[Any], tagged: Any) -> Any:
    return SimpleNamespace(
        current_snapshot=lambda: snapshots[-1] if snapshots else None,
        history=lambda: snapshots,
        snapshot_by_id={each.snapshot_id: each for each in snapshots}.get,
        snapshot_by_name=lambda name: tagged if name == "lakesync" else None,
    )


def test_a_snapshot_without_mark_after_expiry_takes_the_tagged_batch_mark() -> None:
    marked, compacted, later = snapshot(2, 1, "7"), snapshot(4, 3, None), snapshot(5, 4, "9")

    whole = table_of([marked, snapshot(3, 2, None), compacted, later], later)
    assert [moment.applied for moment in history(whole)] == [7, 7, 7, 9]
    expired = table_of([compacted], marked)
    assert history(expired) == [Moment(4, 4, 7)]
    rolled_back = table_of([compacted], later)
    assert history(rolled_back) == [Moment(4, 4, 0)]
    assert history(table_of([], None)) == []
