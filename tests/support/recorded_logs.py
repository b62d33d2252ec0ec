"""Logs of a real MySQL, kept in a file so that they are read where there is no MySQL.

`python -m tests.support.recorded_logs mysql://user:password@host:3306` records them anew.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.systems.mysql import binlog
from lakesync.systems.mysql.binlog import Stream
from lakesync.systems.mysql.binlog_tables import TableLook, Tables
from lakesync.systems.sql.sql_settings import PolledTable
from tests.support.capturing import BinlogWorld
from tests.support.mysql_server import database_on
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.local_stack.databases import Database

FILE: Final = ROOT / "tests" / "systems" / "mysql" / "recorded_mysql_logs.json"
_DOCUMENT: Final = (
    "JSON_OBJECT('b', CAST('2.50' AS DECIMAL(9,2)), 'a', CAST('2024-01-02 03:04:05.6' AS "
    "DATETIME(6)), 'aa', CAST('-11:12:13.25' AS TIME(2)), 'd', DATE'2024-02-29', 'long', "
    "REPEAT('é', 300), 'big', 18446744073709551615, 'f', 1e300, 'e', JSON_ARRAY(), 'o', "
    "JSON_OBJECT(), 'bin', CAST(x'00ff' AS BINARY(2)), '', -32769)"
)
_FEW: Final = "id int PRIMARY KEY, v varchar(20), j json"
_TYPES: Final = """id int PRIMARY KEY, ve vector(3), tx text CHARACTER SET latin1, o json,
    hid int INVISIBLE, ar geometry SRID 4326, en enum('x','é'), KEY ((id + 1)),
    shown int AS (id + 2) VIRTUAL"""
_VALUES: Final = (
    f"(1, STRING_TO_VECTOR('[1,2.5,-3]'), 'é€', {_DOCUMENT}, 7, "
    "ST_GeomFromText('POINT(1 2)', 4326), 'é'), (2, NULL, NULL, NULL, NULL, NULL, NULL)"
)
LOGS: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "types of MySQL alone": (
        _TYPES,
        (f"INSERT INTO {{t}} (id, ve, tx, o, hid, ar, en) VALUES {_VALUES}",),  # noqa: S608 - ours
    ),
    "tagged ids": (
        _FEW,
        ("SET SESSION gtid_next = 'AUTOMATIC:tag'", "INSERT INTO {t} VALUES (1, 'x', NULL)"),
    ),
    "a part of a document": (
        _FEW,
        (
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "INSERT INTO {t} VALUES (1, 'x', JSON_OBJECT('a', 1, 'b', REPEAT('x', 100)))",
            "UPDATE {t} SET j = JSON_SET(j, '$.a', 2)",
        ),
    ),
    "compressed": (
        _FEW,
        (
            "SET SESSION binlog_transaction_compression = ON",
            "INSERT INTO {t} VALUES (1, REPEAT('x', 20), NULL), (2, 'y', JSON_ARRAY(1))",
        ),
    ),
}
"""A table's columns and what is said to it, by what there is to be seen."""


class Recorded(NamedTuple):
    look: TableLook
    packets: list[bytes]
    rows: dict[str, dict[str, Any]]
    """As they are when the table is read, in the end."""


def recorded(name: str) -> Recorded:
    recorded = json.loads(FILE.read_text())["logs"][name]
    look = TableLook(**recorded["look"])._replace(
        primary_key=tuple(recorded["look"]["primary_key"]),
        computed=frozenset(recorded["look"]["computed"]),
    )
    return Recorded(look, [bytes.fromhex(each) for each in recorded["packets"]], recorded["rows"])


def _record(database: Database, columns: str, statements: Sequence[str]) -> dict[str, Any]:
    world = BinlogWorld(database, {"t": columns})
    with closing(world.source.dialect.connect()) as connection:
        cursor = connection.cursor()
        end = binlog.look(cursor).end._replace(gtid="", is_by_gtid=False)
        for statement in statements:
            world.run(statement.format(t=world.tables["t"]))
        with closing(Stream(world.source.dialect, end, 999, is_mariadb=False)) as stream:
            packets = [packet.hex() for packet in stream.packets()]
        name = world.tables["t"]
        tables = Tables("", {name: PolledTable.model_validate({"name": name})})
        tables.look(cursor)
    look = tables.looks[name]._asdict()
    rows = world.expected("t")
    for row in rows.values():
        for column in look["computed"]:
            del row[column]
    world.run("SET SESSION gtid_next = 'AUTOMATIC'")
    world.close()
    return {"look": look | {"computed": sorted(look["computed"])}, "packets": packets, "rows": rows}


def main(url: str) -> None:
    with database_on(url) as database:
        logs = {name: _record(database, *each) for name, each in LOGS.items()}
    FILE.write_text(json.dumps({"logs": logs}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
