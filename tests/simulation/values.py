"""Values that look like others: written by SQL and by edits, while their columns are declared anew.

The oracle is one sentence of law K34: what is read, and what is sent, is the value that was given.
A text is never more than what it spells, and only where its column is declared so.
"""

from __future__ import annotations

import base64
import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import LakeSyncError
from lakesync.result import Err
from tests.simulation.history import Violation
from tests.support.client_rows import client_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.client import Client
    from tests.simulation.clients import Device
    from tests.simulation.world import World

TEXTS: Final = (
    "007", "1.10", "1", "-0", "1e5", "null", "true", "[1", "[1]", "{", '{"a":1}', '"x"', "", " 1",
    "9007199254740993", "99999999999999999999", "2026-05-17", "AP8=", "it's", "x",
)  # fmt: skip
"""Texts that look like something else."""
OTHERS: Final = (2, -5, 0.5, 2**53 - 1, True, False, None)
"""Values that SQL has, or that are told apart as parameters."""
BITS: Final = (0, 1)
"""Numbers that are booleans where SQL writes them into columns of such."""
STRUCTURES: Final[tuple[Any, ...]] = ([1], [], {"a": 1}, ["1.10", None])
TEXT, DOCUMENT = "cell", "doc"
"""A column that never has an object or a list, and one that may."""
KINDS: Final = {
    TEXT: ("string", "number", "boolean", "integer", "decimal(38,20)", "date", "bytes"),
    DOCUMENT: ("json", "json", "string"),
}
_SPELLED: Final[dict[str, tuple[type, Callable[[Any], str]]]] = {
    "integer": (int, str),
    "date": (date, date.isoformat),
    "bytes": (bytes, lambda shown: base64.b64encode(shown).decode()),
}


class Values:
    """One client's user, who declares columns and edits them by SQL."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = world.stream(f"values {number}")
        self.kinds: dict[tuple[str, str], str] = {}
        """What the app declares: each time it starts, and when it changes its mind."""

    def start(self, device: Device) -> None:
        """Declare what the app declares whenever it starts."""
        for table, column in self.kinds:
            self._declare(device, table, column)

    def act(self, device: Device) -> None:
        """Edit by SQL or otherwise, or declare a column as another type."""
        random = self._random
        table = random.choice(self._world.scenario.tables).name
        column = random.choice([TEXT, TEXT, DOCUMENT])
        if random.random() < 0.2:
            self.kinds[table, column] = random.choice(KINDS[column])
            self._declare(device, table, column)
            self._world.count("column declared")
            assert device.client is not None
            check_values(device.client, self.kinds)
        else:
            self._edit(device, table, column)

    def _declare(self, device: Device, table: str, column: str) -> None:
        assert device.client is not None
        device.client.declare(table, {column: self.kinds[table, column]}).unwrap()

    def _edit(self, device: Device, table: str, column: str) -> None:
        client, random = device.client, self._random
        assert client is not None
        row_id = f"row{random.randrange(self._world.scenario.rows)}"
        last = max((entry.delta.hlc for entry in client.pending().unwrap()), default=0)
        way = random.choice(["insert", "update", "INSERT", "UPDATE", "UPDATE", "literal"])
        value = random.choice(_drawn_from(column, way))
        done = _write(client, way, (table, row_id, column), value)
        if isinstance(done, Err):
            assert isinstance(done.error, LakeSyncError)
            self._world.count(f"{way}: {done.error.code}")
            return
        if done.value == 0:  # the row is not there
            return
        self._world.count("edit by SQL" if isinstance(done.value, int) else "edit of a value")
        made = [entry.delta for entry in client.pending().unwrap() if entry.delta.hlc > last]
        for delta in made:
            self._world.losses.edited(client, delta, self._world.scheduler.now_ms)
            device.session.edited(client, delta)
            self._check_sent(dict(delta.columns), column, value, self.kinds.get((table, column)))
        given = json.dumps(value)
        if column == DOCUMENT and isinstance(value, str) and value[:1] in {"[", "{"}:
            given = _state(client, table, row_id).get(column, b"null").decode()
        check_value(client, (table, row_id), {column: given}, self.kinds)

    def _check_sent(
        self, columns: Mapping[str, bytes], column: str, value: Any, kind: str | None
    ) -> None:
        if value is None and column not in columns:
            return  # SQL inserts no null
        sent = json.loads(columns[column])
        is_same = type(sent) is type(value) and sent == value
        if column == DOCUMENT and isinstance(value, str) and value[:1] in {"[", "{"}:
            # Text that is a list is one where the column has lists.
            is_same = is_same or sent == _structure(value)
        elif not isinstance(value, str | bool) and not isinstance(sent, bool):
            is_same = sent == value or (
                kind is not None and kind.startswith("decimal") and sent == str(value)
            )
        if not is_same:
            raise Violation("a value is one value", f"{value!r} was given, {sent!r} is sent")


def check_values(client: Client, kinds: Mapping[tuple[str, str], str]) -> None:
    """Hold all that an app reads of declared columns against what was sent."""
    tables = {table for table, _ in kinds}
    for row in client_rows(client):
        if row.table in tables and client.get(row.table, row.row_id).unwrap() is not None:
            raw = {name: write[2].decode() for name, write in row.state[2].items()}
            given = {name: raw.get(name, "null") for name in KINDS if (row.table, name) in kinds}
            check_value(client, (row.table, row.row_id), given, kinds)


def check_value(
    client: Client,
    key: tuple[str, str],
    given: Mapping[str, str],
    kinds: Mapping[tuple[str, str], str],
) -> None:
    """Hold both ways of reading a row against the JSON of what was given for its columns."""
    got = client.get(*key).unwrap() or {}
    names = ", ".join(given)
    sql = f'SELECT {names} FROM "{key[0]}" WHERE _row_id = ?'  # noqa: S608
    queried = client.query(sql, (key[1],)).unwrap()
    for name, raw in given.items():
        kind = kinds.get((key[0], name), "").partition("(")[0]
        for shown in (got.get(name), *(row[name] for row in queried)):
            if not is_read_as(shown, json.loads(raw), kind):
                message = f"{key} {name} {kind}: {shown!r} is read, {raw} was given"
                raise Violation("a value is one value", message)


def is_read_as(shown: Any, value: Any, kind: str) -> bool:
    if isinstance(shown, Decimal) and kind == "decimal" and not isinstance(value, bool):
        return shown == Decimal(str(value))
    if isinstance(value, str) and not isinstance(shown, str):
        its_type, spell = _SPELLED.get(kind, (type(None), str))
        return shown is not None and type(shown) is its_type and spell(shown) == value
    if kind == "boolean" and type(value) in {int, float} and value in BITS:
        return bool(shown == value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return isinstance(shown, int | float) and type(shown) is not bool and shown == value
    return type(shown) is type(value) and shown == value


def _drawn_from(column: str, way: str) -> tuple[Any, ...]:
    if way == "literal":
        return TEXTS
    structures = STRUCTURES if column == DOCUMENT else ()
    return (*TEXTS, *OTHERS, *structures, *(() if way.isupper() else BITS))


def _write(client: Client, way: str, where: tuple[str, str, str], value: Any) -> Any:
    table, row_id, column = where
    if way == "insert":
        return client.insert(table, row_id, {column: value})
    if way == "update":
        return client.update(table, row_id, {column: value})
    if way == "INSERT":
        sql = f'INSERT INTO "{table}" (_row_id, {column}) VALUES (?, ?)'  # noqa: S608
        return client.execute(sql, (row_id, value))
    if way == "UPDATE":
        sql = f'UPDATE "{table}" SET {column} = ? WHERE _row_id = ?'  # noqa: S608
        return client.execute(sql, (value, row_id))
    literal = "'" + value.replace("'", "''") + "'"
    sql = f"""UPDATE "{table}" SET {column} = {literal} WHERE _row_id = '{row_id}'"""  # noqa: S608
    return client.execute(sql)


def _state(client: Client, table: str, row_id: str) -> dict[str, bytes]:
    (row,) = client_rows(client, table, row_id)
    return {name: write[2] for name, write in row.state[2].items()}


def _structure(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
