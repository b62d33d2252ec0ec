"""Change capture of MySQL by logs that a real one wrote: what MariaDB's, which is real, has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.systems.mysql.binlog import Position
from lakesync.systems.mysql.binlog_events import Decoder, tables_in
from lakesync.systems.mysql.binlog_rows import reader_of
from lakesync.systems.mysql.binlog_tables import captured_table
from lakesync.systems.mysql.mysql_capture import Described, Parts
from lakesync.systems.sql.log_changes import GapError
from lakesync.systems.sql.sql_settings import PolledTable
from tests.support.recorded_logs import Recorded, recorded

if TYPE_CHECKING:
    from lakesync.systems.mysql.binlog_events import LoggedTable
    from lakesync.systems.sql.log_changes import Part

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def read(
    log: Recorded, *, is_wanted: bool = True, start: Position | None = None
) -> tuple[list[Part], list[str]]:
    """Read a log; returns its parts, and which tables are to be read again."""
    again: list[str] = []
    place = (log.look.schema, log.look.table)

    def described(logged: LoggedTable) -> Described:
        table = captured_table(logged, log.look, PolledTable.model_validate({"name": "t"}))
        return Described(table, tuple(map(reader_of, logged.columns)))

    parts = Parts(
        start or Position("binlog.000001", 4, f"{SERVER}:1-5", is_by_gtid=True),
        100,
        1 << 60,
        described,
        lambda name, _: again.append(name),
        lambda each: tables_in(each.sql, each.schema, {"t": place}),
    )
    decoder = Decoder(
        is_checked=True, is_mariadb=False, wanted=lambda *names: is_wanted and names == place
    )
    return list(parts.of(decoder, log.packets)), again


def rows(parts: list[Part]) -> dict[str, object]:
    """Return the rows that parts tell."""
    return {change.row_id: change.columns for part in parts for change in part.changes}


@pytest.mark.law("N12")
def test_mysql_only_types_decode_to_the_values_of_the_table() -> None:
    log = recorded("types of MySQL alone")
    parts, again = read(log)
    assert rows(parts) == log.rows
    assert again == []


@pytest.mark.law("N12", "N13")
def test_unknown_types_in_tables_that_are_not_captured_are_skipped() -> None:
    unknown = recorded("types of MySQL alone")
    # Types of a later version, of texts, whose collations the log tells.
    known, later = bytes([242, 252, 245]), bytes([200, 200, 245])
    packets = [each.replace(known, later) for each in unknown.packets]
    assert packets != unknown.packets
    with pytest.raises(ValueError, match="argument 2 is longer"):
        read(unknown._replace(packets=packets))
    for log in (unknown._replace(packets=packets), recorded("a part of a document")):
        parts, again = read(log, is_wanted=False)
        assert (rows(parts), again) == ({}, [])


@pytest.mark.law("N12")
def test_after_a_tagged_gtid_the_position_is_a_file_and_an_offset() -> None:
    log = recorded("tagged ids")
    parts, _ = read(log)
    assert rows(parts) == log.rows
    end = parts[-1].end
    assert (end.gtid, end.is_by_gtid) == ("", False)
    assert end.place > (1, 4)


@pytest.mark.law("N12", "N13")
def test_partially_logged_json_document_triggers_a_re_read_of_its_table() -> None:
    parts, again = read(recorded("a part of a document"))
    assert again == ["t"]
    assert rows(parts).keys() == {"1"}


@pytest.mark.law("N13")
def test_compressed_transaction_raises_a_gap_that_names_the_setting() -> None:
    with pytest.raises(GapError, match="binlog_transaction_compression must be OFF"):
        read(recorded("compressed"))
