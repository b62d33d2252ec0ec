"""lakesync.cli.lake: under which names the columns of a lake table are shown."""

from __future__ import annotations

from types import SimpleNamespace

from lakesync.cli.lake import written_columns, written_names


def test_columns_have_the_names_that_they_were_written_under() -> None:
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


def test_names_that_sql_cannot_tell_apart_stay_those_of_the_lake() -> None:
    assert written_names(["due", "c_due_1"], {"due": "due", "c_due_1": "Due"}) == ["due", "c_due_1"]
