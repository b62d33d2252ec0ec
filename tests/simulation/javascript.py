"""Clients in Node.js: the real JavaScript client behind the interface of the Python one.

The client, its storage (IndexedDB, or memory) and its requests are the real ones. Its network, its
clock and its death are the simulation's: each request stops it until its answer is there, and it
dies before or after any transaction that writes. When it syncs is decided as for other clients.
"""

from __future__ import annotations

import base64
import json
import math
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import LostWrite, OutboxEntry
from lakesync.client.storage.file import Position as ReadPosition
from lakesync.client.storage.outbox import Status
from lakesync.client.waits import WAITS, never
from lakesync.core.delta import Delta, Op, known_delta
from lakesync.core.schema import schemas_to_json
from lakesync.errors import BY_CODE, LakeSyncError, Unreachable
from lakesync.result import Err, Ok, Result
from lakesync.wire import jsonish, proto
from tests.simulation import node
from tests.simulation.clients import Device
from tests.simulation.history import Violation
from tests.simulation.model import Key, Row, stored_row
from tests.simulation.network import HTTP_OK, SimulatedTransport
from tests.simulation.scheduler import Crashed
from tests.simulation.speech import JSON
from tests.simulation.stored import ABSENT, Position, StoredRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.client import Client
    from lakesync.client.storage.misuse import Mode
    from lakesync.core.messages import Pull, PullPage
    from lakesync.ports import Listening
    from tests.simulation.scenario import Scenario
    from tests.simulation.scheduler import Event, Process
    from tests.simulation.world import World

IN_MEMORY: Final = 0.3
"""The share of clients that keep nothing when their process ends, where none dies."""
POINTS: Final = 4
"""How many SQL statements a point of death in JavaScript stands for."""


def lives_in_node(scenario: Scenario, number: int) -> bool:
    """Return whether a client is one in Node.js: every second, where no app uses SQL."""
    uses_sql = scenario.by_sql or scenario.triggers
    return scenario.javascript and not uses_sql and number % 2 == 1


def begin_in_node(scenario: Scenario) -> None:
    """Forget all databases of the simulation before."""
    if scenario.javascript:
        node.running().ask({"do": "begin"})


class NodeDevice(Device):
    """One client in a browser: a database that outlives its pages, or memory that does not."""

    def __init__(self, world: World, number: int, *given: Any) -> None:
        super().__init__(world, number, *given)
        world.count("client in Node.js")
        self._storage = world.stream(f"storage {number}")
        self.link.speech = JSON
        self.link.pushes_by_socket = False
        deadly = world.faults.crash_client or world.faults.crash_statement
        self._in_memory = not deadly and self._storage.random() < IN_MEMORY

    def _opened(self) -> Client:
        client: Any = NodeClient(self._world, self)
        client.open(in_memory=self._in_memory)
        opened: Client = client
        return opened

    @property
    def name(self) -> str:
        """What the database is called."""
        return self._path.stem

    def transport(self) -> NodeTransport:
        """Return the way to the gateway of the process that is up."""
        return NodeTransport(self._world, self.process, self.link)

    def draw_points(self) -> int | None:
        """Return after how many points its process dies; None if it does not by itself."""
        share = POINTS * self._world.scenario.faults.crash_statement
        if not share:
            return None
        return int(math.log(1 - self._storage.random()) / math.log(1 - share))

    def _bury(self) -> None:
        dead, self._dead = self._dead, None
        if dead is not None:
            dead.close()

    def _left_in_file(self) -> list[Delta]:
        answer = node.running().ask({"do": "left", "device": self.number, "name": self.name})
        return [_delta(entry["delta"]) for entry in answer["value"]]


class NodeTransport(SimulatedTransport):
    """The same network, by addresses, statuses and texts."""

    def fetch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request; an empty answer says that nothing came back."""
        route = str(asked["url"]).rpartition("/")[2]
        try:
            if route == "schema":
                status, content = self._schemas()
            else:
                status, content = self._answer(route, str(asked["body"]).encode())
        except Unreachable:
            return {}
        if route == "pull" and status == HTTP_OK:
            self._note_cursor(content)
        return {"status": status, "body": content.decode(errors="replace")}

    def _answer(self, route: str, body: bytes) -> tuple[int, bytes]:
        # A pull is a query, which protobuf stands for in the simulation.
        return self.answer(
            route, proto.encode_pull(jsonish.decode_pull(body)) if route == "pull" else body
        )

    def _schemas(self) -> tuple[int, bytes]:
        if self._world.scheduler.now_ms < self._link.down_until_ms:
            raise Unreachable("there is no network")
        schemas = self._world.schemas_for(self._link.claims)
        return HTTP_OK, json.dumps(schemas_to_json(schemas)).encode()

    def _note_cursor(self, content: bytes) -> None:
        try:
            cursor = int(json.loads(content)["serverHlc"])
        except (ValueError, KeyError, TypeError):
            return  # somebody on the way said it
        self._link.cursor = max(self._link.cursor, cursor)


class NodeClient:
    """One process of a device, as `lakesync.client.Client` as far as the simulation uses that."""

    edited: Event

    def __init__(self, world: World, device: NodeDevice) -> None:
        self._world = world
        self._device = device
        self._process: Process = device.process
        self._transport = device.transport()
        self._points = device.draw_points()
        self.client_id = device.client_id
        self.connected = False
        self.stored = StoredInNode(self)
        self.actions = self.attachments = _Nothing()

    # --- the process ------------------------------------------------------------------------------

    def open(self, *, in_memory: bool) -> None:
        """Open the database."""
        scenario = self._world.scenario
        options = {
            "name": self._device.name,
            "clientId": self.client_id,
            "pageDeltas": scenario.page_deltas,
            "firstTables": ["table1"] if self.client_id[-1] in "13579" else [],
            "inMemory": in_memory,
        }
        tables = [table.name for table in scenario.tables] + self._world.declarations.names
        opened = _result(self.ask("open", options=options, tables=tables)).unwrap()
        if opened["isDurable"] == in_memory:
            raise Violation("no edit is lost", f"{opened} in memory: {in_memory}")
        self._world.count("open in memory" if in_memory else "open in IndexedDB")

    def read(self, do: str, **fields: Any) -> Any:
        """Look at something; nobody dies of that."""
        request = {"do": do, "device": self._device.number, "ms": self._device.clock()}
        return node.running().ask({**request, "points": None, **fields})["value"]

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Let it do something, of which it may die."""
        if not self._process.alive:
            raise Crashed
        points = self._points if self._world.faults.crash_statement else None
        request = {"do": do, "device": self._device.number, "ms": self._device.clock()}
        answer = node.running().ask({**request, "points": points, **fields})
        if "died" in answer:
            self._world.count("app killed in JavaScript")
            self._world.crash(self._process, answer["died"])
            raise Crashed
        if points is not None and self._points is not None:
            self._points -= answer.get("points", 0)
        return answer

    def call(self, method: str, *given: Any) -> Result[Any, LakeSyncError]:
        """Call an operation that gives a result."""
        return _result(self.ask("call", method=method, given=given)["value"])

    def close(self) -> None:
        """End it, however it is."""
        request = {"do": "close", "device": self._device.number, "ms": self._device.clock()}
        node.running().ask(request)

    # --- edits ------------------------------------------------------------------------------------

    def insert(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Insert a row."""
        return self._edit("insert", table, row_id, columns)

    def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Write columns of a row."""
        return self._edit("update", table, row_id, columns)

    def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """Delete a row."""
        return self._edit("delete", table, row_id)

    def _edit(self, method: str, *given: Any) -> Result[Delta, LakeSyncError]:
        match self.call(method, *given):
            case Ok(value):
                self.edited.set()
                return Ok(_delta(value))
            case Err() as refused:
                return refused

    @contextmanager
    def transaction(self) -> Iterator[NodeTransaction]:
        """Collect edits, and make them at the end: as a JavaScript app's function does at once."""
        collected = NodeTransaction()
        yield collected
        for delta in self.call("transaction", collected.edits).unwrap():
            collected.deltas.append(_delta(delta))
        self.edited.set()

    # --- refused edits ----------------------------------------------------------------------------

    def quarantined(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Return the edits that were refused."""
        ids = self.ask("call", method="quarantined", given=[])["value"]
        by_id = {entry["delta"]["deltaId"]: entry for entry in self.read("outbox")}
        return Ok([_entry(by_id[delta_id]) for delta_id in ids])

    def retry(self, delta_id: str) -> Result[None, LakeSyncError]:
        """Push a refused edit again."""
        return self._decide("retry", delta_id)

    def discard(self, delta_id: str) -> Result[None, LakeSyncError]:
        """Take an edit back."""
        return self._decide("discard", delta_id)

    def amend(self, delta_id: str, columns: Mapping[str, object]) -> Result[Delta, LakeSyncError]:
        """Replace a refused edit; the new one is the last that waits."""
        match self._decide("amend", delta_id, columns):
            case Ok():
                return Ok(max((delta for delta, _ in self.stored.outbox()), key=stamp_of))
            case Err() as refused:
                return refused

    def _decide(self, method: str, *given: Any) -> Result[Any, LakeSyncError]:
        result = self.call(method, *given)
        self.edited.set()
        return result

    def conflicts(self) -> Result[list[LostWrite], LakeSyncError]:
        """Return the lost writes that it tells of."""
        return Ok([_lost_write(each) for each in self.read("call", method="conflicts", given=[])])

    def rebind(self, keep: str) -> Result[int, LakeSyncError]:
        """Give the database to another gateway."""
        return self._decide("rebind", keep)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """Return a row."""
        return _result(self.read("call", method="get", given=[table, row_id]))

    def schema(self, table: str) -> Result[object, LakeSyncError]:
        """Return something if the gateway has told it a schema of a table."""
        known = {name.lower() for name in self.read("schemas")}
        return Ok(table if table.lower() in known else None)

    # --- syncing ----------------------------------------------------------------------------------

    def sync(
        self, *, stopped: Callable[[], bool] = never, mode: Mode = "full"
    ) -> Result[None, LakeSyncError]:
        """Sync, as far as the network lets it."""
        del stopped
        answer = self.ask("sync", mode=mode)
        while "asked" in answer:
            answer = self.ask("answer", **self._transport.fetch(answer["asked"]))
        return _result(answer)

    def hurry(self) -> None:
        """Try at the next sync what was stopped on its way."""
        self.ask("hurry")

    def listen(self, wake: Callable[[], None]) -> Listening | None:
        """Keep a WebSocket, if clients have any here."""
        world = self._world
        hearer: Any = NodeHearer(self, wake)
        return world.sockets.listen(self._process, self._device.link, hearer)


class NodeTransaction:
    """Edits of one transaction, which are made at its end."""

    def __init__(self) -> None:
        self.edits: list[tuple[Any, ...]] = []
        self.deltas: list[Delta] = []
        """What they became, once it has ended."""

    def insert(self, *given: Any) -> Result[Any, LakeSyncError]:
        """Insert a row."""
        return self._add("insert", *given)

    def update(self, *given: Any) -> Result[Any, LakeSyncError]:
        """Write columns of a row."""
        return self._add("update", *given)

    def delete(self, *given: Any) -> Result[Any, LakeSyncError]:
        """Delete a row."""
        return self._add("delete", *given)

    def _add(self, *edit: Any) -> Result[Any, LakeSyncError]:
        self.edits.append(edit)
        return Ok(None)


class NodeHearer:
    """What its WebSocket tells: `lakesync.ports.Hearer`."""

    def __init__(self, client: NodeClient, wake: Callable[[], None]) -> None:
        self._client = client
        self.client_id = client.client_id
        self.wake = wake
        self.heartbeat_s = WAITS.heartbeat_s
        self.reconnect_s = WAITS.reconnect_s
        self.reconnect_s_max = WAITS.reconnect_s_max

    def hear(self, page: PullPage) -> bool:
        """Let it apply a broadcast that fits."""
        body = json.loads(jsonish.encode_page(page))
        previous = {} if page.previous is None else {"previous": str(page.previous)}
        answer = self._client.ask("hear", page=body, first=str(page.first), **previous)
        return bool(answer["value"])

    def reads_again(self, page: PullPage) -> bool:
        """Return whether the next pull reads tables again."""
        return self._position().reads_again(page)

    def next_pull(self) -> Pull:
        """Return the request for what is behind its cursor."""
        return self._position().pull(self.client_id, 1)

    def is_current(self, page: PullPage) -> bool:
        """Return whether the answer to that shows that nothing was missed."""
        at = self._position()
        brings = page.count or page.has_more or page.snapshot or page.resync is not None
        return not brings and not at.snapshot and (page.epoch, page.scope) == (at.epoch, at.scope)

    def on_connected(self, *, is_open: bool, reason: str | None = None) -> None:
        """Note whether it is open."""
        del reason
        self._client.connected = is_open

    def _position(self) -> ReadPosition:
        at = self._client.read("position")
        return ReadPosition(at["cursor"], at["epoch"], at["snapshot"], at["scope"])


# --- values ---------------------------------------------------------------------------------------


def is_shown(shown: Mapping[str, Any] | None, due: Mapping[str, Any] | None) -> bool:
    """Return whether an app is shown a row: columns with a schema by JavaScript's own values."""
    if shown is None or due is None:
        return shown is due
    return shown.keys() == due.keys() and all(_is_read(shown[name], due[name]) for name in due)


def _is_read(shown: Any, due: Any) -> bool:
    if type(shown) is type(due) and shown == due:
        return True
    if isinstance(shown, bytes):
        return shown == base64.b64decode(due.rstrip("=") + "==")
    texts = [each for each in (shown, due) if isinstance(each, str)]
    if not texts or isinstance(shown, bool) or isinstance(due, bool):
        return False
    try:  # an integer or a decimal, of which one of both is the text
        return Decimal(str(shown)) == Decimal(str(due))
    except InvalidOperation:
        return False


# --- what is stored -------------------------------------------------------------------------------


class StoredInNode:
    """What a client in Node.js has stored."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def position(self) -> Position:
        at = self._client.read("position")
        return Position(at["cursor"], at["snapshot"], at["mode"], at["epoch"])

    def outbox(self) -> Iterator[tuple[Delta, str]]:
        for entry in self._client.read("outbox"):
            yield _delta(entry["delta"]), entry["status"]

    def later_stamp(self, hlc: int) -> int | None:
        return next((delta.hlc for delta, _ in self.outbox() if delta.hlc > hlc), None)

    def rows(self) -> dict[Key, StoredRow]:
        return {(row["table"], row["rowId"]): _stored(row) for row in self._client.read("rows")}

    def row(self, key: Key) -> StoredRow:
        row = self._client.read("row", table=key[0], rowId=key[1])
        return ABSENT if row is None else _stored(row)

    def listed(self, key: Key) -> list[dict[str, Any]] | None:
        """Read it by a query, and see that who watches the table was told the same."""
        listed = self._client.read("listed", table=key[0], rowId=key[1])
        if listed is None:
            return None
        rows: list[dict[str, Any]] = listed["queried"]
        if listed["watched"] != rows:
            raise Violation("the app sees the row", f"{key}: {listed['watched']} told, {rows}")
        return rows


def stamp_of(delta: Delta) -> int:
    return delta.hlc


class _Nothing:
    """Actions and attachments, which it has not."""

    def due_s(self) -> None:
        """Return when the next is due: never."""

    def is_waiting(self) -> bool:
        return False


# --- JSON -----------------------------------------------------------------------------------------


def _result(answer: Mapping[str, Any]) -> Result[Any, LakeSyncError]:
    if "error" not in answer:
        return Ok(answer.get("value"))
    fields = answer["error"]
    kind = BY_CODE.get(fields["code"])
    if kind is None:
        raise node.NodeError(f"no error of the gateway's tree: {fields}")
    wait_s = fields["retryAfterS"] or None
    error = kind(fields["message"], field=fields["field"], retry_after_s=wait_s)
    error.is_foreign = fields["isForeign"]
    return Err(error)


def _delta(fields: Mapping[str, Any]) -> Delta:
    columns = tuple((name, text.encode()) for name, text in fields["columns"])
    delta = known_delta(
        Op[fields["op"]], fields["table"], fields["rowId"], fields["clientId"],
        fields["hlc"], columns,
    )  # fmt: skip
    if delta.delta_id != fields["deltaId"]:
        raise node.NodeError(f"{fields} has the id {delta.delta_id}")
    return delta


def _entry(fields: Mapping[str, Any]) -> OutboxEntry:
    error = BY_CODE[fields["code"]](fields["message"]) if fields["code"] else None
    return OutboxEntry(_delta(fields["delta"]), Status(fields["status"]), error)


def _stored(row: Mapping[str, Any]) -> StoredRow:
    return StoredRow(_row(row["state"]), _row(row["known"]))


def _row(state: list[Any]) -> Row:
    alive, deleted, columns = state
    return stored_row(
        alive, deleted,
        {name: (hlc, client, text.encode()) for name, (hlc, client, text) in columns.items()},
    )  # fmt: skip


def _lost_write(fields: Mapping[str, Any]) -> LostWrite:
    return LostWrite(
        fields["table"], fields["rowId"], fields["column"],
        fields["own"], fields["other"], fields["otherClient"],
        deleted=fields["deleted"], base=fields["base"], won=fields["won"],
        own_stamp=fields["ownHlc"], other_stamp=fields["otherHlc"],
        hidden=fields["hidden"],
    )  # fmt: skip
