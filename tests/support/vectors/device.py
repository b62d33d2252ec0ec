"""A client that does one event after another, and what can be seen of it after each.

The events of a trace: what happens to a client, in the only order in which it can happen

    edit        {"edits": [{op, table, rowId, columns}]}: one local transaction if there are several
    sync        {"mode"}: it asks, and is answered, until it has nothing left to ask
    answer      {"body"} to what it asked last, or {"error": {code, error, retryAfterS}}
    lost        nothing came back
    foreign     {"status"}: an answer that is not the gateway's
    broadcast   {"body", "first", "previous"}: a page that nobody asked for
    crash       the process ends, and another opens the file
    retry, discard, amend {"hlc", "columns"}: the app decides about a refused edit
    rebind      {"keep"}: the app gives the file to another gateway
"""

from __future__ import annotations

import json
import queue
import shutil
import threading
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import Client
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import canonical, parse
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.core.schema import schemas_from_json
from lakesync.errors import BY_CODE, InternalError, LakeSyncError, NotTheGateway, Unreachable
from lakesync.result import Err, Ok
from lakesync.wire import jsonish
from tests.support.vectors.case import delta_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lakesync.client.storage.editor import Editor
    from lakesync.core.messages import Pull, PullPage, Push
    from lakesync.core.schema import Schemas
    from lakesync.ports import Hearer
    from lakesync.result import Result

Event = dict[str, Any]
Seen = dict[str, Any]
ANSWER_S_MAX: Final = 60
"""How long a test waits for a client that should have asked or ended."""


class Crashed(BaseException):
    """Its process is gone: nothing of it runs on."""


class Wire:
    """A transport whose requests wait until a trace answers them."""

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()

    def push(self, push: Push) -> PushReceipt:
        """Ask to push."""
        return receipt_of(self._ask("push", json.loads(jsonish.encode_push(push))))

    def pull(self, pull: Pull) -> PullPage:
        """Ask for a page."""
        return jsonish.decode_page(json.dumps(self._ask("pull", pull_fields(pull))).encode())

    def schemas(self) -> Schemas:
        """Ask for the schemas."""
        return schemas_from_json(self._ask("schemas", {}))

    def listen(self, hearer: Hearer) -> Wire:
        """Remember who is told what nobody asked for."""
        self.hearer = hearer
        return self

    def stop(self) -> None:
        """Tell nobody any more."""

    def _ask(self, kind: str, request: object) -> Any:
        self.asked.put(("request", {kind: request}))
        answer = self.answers.get(timeout=ANSWER_S_MAX)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Device:
    """The Python client, event by event."""

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        self._folder = folder
        self._given = given
        self._wall_ms = 0
        self._opened = 0
        self._seen: Seen = {"outbox": [], "rows": {}, "conflicts": []}
        self._thread: threading.Thread | None = None
        self._open(None)

    def do(self, event: Event) -> Seen:
        """Let something happen, and return what of the client is different afterwards."""
        self._wall_ms = event["wallMs"]
        seen: Seen = getattr(self, f"_{event['do']}")(event)
        return seen | self._changes()

    @property
    def asks(self) -> bool:
        """Whether a request waits for its answer."""
        return self._thread is not None

    def close(self) -> None:
        """Close the file."""
        self._stop()
        self.client.close()

    # --- events -----------------------------------------------------------------------------------

    def _edit(self, event: Event) -> Seen:
        edits = event["edits"]
        if len(edits) == 1:
            return _refusal(_edited(self.client, edits[0]))
        error: Seen = {}
        try:
            with self.client.transaction() as transaction:
                for edit in edits:
                    error = error or _refusal(_edited(transaction, edit))
        except LakeSyncError as refused:
            return {"refused": refused.code}
        return error

    def _sync(self, event: Event) -> Seen:
        client, wire = self.client, self._wire

        def run() -> None:
            try:
                wire.asked.put(("ended", client.sync(mode=event.get("mode", "full"))))
            except Crashed:
                wire.asked.put(("crashed", None))

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return self._next()

    def _answer(self, event: Event) -> Seen:
        if "error" not in event:
            return self._answered(event["body"])
        fields = event["error"]
        kind = BY_CODE.get(fields["code"], InternalError)
        return self._answered(kind(fields["error"], retry_after_s=fields.get("retryAfterS")))

    def _lost(self, event: Event) -> Seen:
        del event
        return self._answered(Unreachable("nothing came back"))

    def _foreign(self, event: Event) -> Seen:
        error = NotTheGateway("something else answered")
        error.http_status = event["status"]
        return self._answered(error)

    def _broadcast(self, event: Event) -> Seen:
        page = jsonish.decode_page(json.dumps(event["body"]).encode())
        object.__setattr__(page, "first", int(event["first"]))
        object.__setattr__(page, "previous", int(event["previous"]))
        return {"applied": self._wire.hearer.hear(page)}

    def _crash(self, event: Event) -> Seen:
        del event
        copy = self._folder / f"copy{self._opened}"
        copy.mkdir()
        for file in self._path.parent.iterdir():
            shutil.copyfile(file, copy / file.name)
        self.close()
        self._open(copy)
        return {}

    def _retry(self, event: Event) -> Seen:
        return self._decided(event["hlc"], self.client.retry)

    def _discard(self, event: Event) -> Seen:
        return self._decided(event["hlc"], self.client.discard)

    def _amend(self, event: Event) -> Seen:
        return self._decided(
            event["hlc"], lambda delta_id: self.client.amend(delta_id, event["columns"])
        )

    def _rebind(self, event: Event) -> Seen:
        return _refusal(self.client.rebind(event["keep"]))

    # --- the process ------------------------------------------------------------------------------

    def _open(self, folder: Path | None) -> None:
        self._opened += 1
        home = folder or self._folder / "first"
        home.mkdir(exist_ok=True)
        self._path = home / "client.db"
        self._wire = Wire()
        self.client = Client(
            self._path,
            client_id=self._given["clientId"],
            transport=self._wire,
            wall_clock=lambda: self._wall_ms,
            durability="NORMAL",
            page_deltas=self._given["pageDeltas"],
            first_tables=self._given["firstTables"],
        )
        self.client.listen(lambda: None)

    def _stop(self) -> None:
        if self._thread is not None:
            self._wire.answers.put(Crashed())
            self._thread.join()
            self._thread = None

    def _answered(self, answer: object) -> Seen:
        self._wire.answers.put(answer)
        return self._next()

    def _next(self) -> Seen:
        kind, what = self._wire.asked.get(timeout=ANSWER_S_MAX)
        if kind == "request":
            return {"request": what}
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        return {"synced": "ok" if isinstance(what, Ok) else what.error.code}

    def _decided(self, hlc: str, decide: Any) -> Seen:
        waiting = [*self.client.pending().unwrap(), *self.client.quarantined().unwrap()]
        ids = [entry.delta.delta_id for entry in waiting if entry.delta.hlc == int(hlc)]
        return _refusal(decide(ids[0])) if ids else {"refused": "NOT_FOUND"}

    # --- what can be seen -------------------------------------------------------------------------

    def _changes(self) -> Seen:
        now: Seen = {
            "outbox": list(self._outbox()),
            "rows": self.rows(),
            "conflicts": self._conflicts(),
        }
        seen, self._seen = self._seen, now
        changed = {name: value for name, value in now.items() if value != seen[name]}
        if "rows" in changed:
            changed["rows"] = _changed_rows(seen["rows"], now["rows"])
        return changed

    def _outbox(self) -> Iterator[Seen]:
        waiting = [*self.client.pending().unwrap(), *self.client.quarantined().unwrap()]
        for entry in sorted(waiting, key=lambda entry: entry.delta.hlc):
            delta = delta_fields(entry.delta)
            del delta["clientId"]
            yield delta | ({"code": entry.code} if entry.code else {})

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return all rows that an app sees, by table."""
        shown: dict[str, dict[str, Any]] = {}
        for table in self._given["tables"]:
            name = self.client.sql_name(table).unwrap()
            if name is None:
                continue
            listed = self.client.query(f'SELECT _row_id FROM "{name}"').unwrap()  # noqa: S608 - a name that the client gave
            ids = sorted(row["_row_id"] for row in listed)
            rows = {row_id: _plain(self.client.get(table, row_id).unwrap()) for row_id in ids}
            if rows:
                shown[table] = rows
        return shown

    def _conflicts(self) -> list[Seen]:
        """Return the conflicts, by what they are of: those of one page have no order."""
        listed = [
            {
                "table": each.table,
                "rowId": each.row_id,
                "column": each.column,
                "own": each.own,
                "other": each.other,
                "otherClient": each.other_client,
                "deleted": each.deleted,
                "won": each.won,
                "hidden": each.hidden,
            }
            for each in self.client.conflicts().unwrap()
        ]
        return sorted(listed, key=lambda each: json.dumps(each, sort_keys=True))


def _changed_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows that are different, by table; null for one that is no longer there."""
    changed = {
        table: {
            row_id: after.get(table, {}).get(row_id)
            for row_id in sorted({*before.get(table, {}), *after.get(table, {})})
            if before.get(table, {}).get(row_id) != after.get(table, {}).get(row_id)
        }
        for table in sorted({*before, *after})
    }
    return {table: rows for table, rows in changed.items() if rows}


def receipt_of(fields: Mapping[str, Any]) -> PushReceipt:
    """Read a receipt's JSON."""
    outcomes = [
        DeltaOutcome(
            item["index"],
            item["deltaId"],
            OutcomeKind(item["outcome"]),
            BY_CODE[item["code"]](item["error"], field=item.get("field"))
            if "code" in item
            else None,
        )
        for item in fields["results"]
    ]
    return PushReceipt(
        int(fields["serverHlc"]),
        fields["accepted"],
        tuple(outcomes),
        fields["serverTimeMs"],
        fields.get("epoch", ""),
    )


def pull_fields(pull: Pull) -> dict[str, Any]:
    """Return what a pull asks for; what is not there is not asked for."""
    fields = {
        "since": str(pull.since),
        "limit": pull.deltas_max,
        "epoch": pull.epoch,
        "snapshot": pull.snapshot,
        "scope": pull.scope,
        "quarantined": pull.quarantined,
    }
    if pull.at_least == STAMP_MAX:
        fields["fresh"] = True
    elif pull.at_least:
        fields["atLeast"] = str(pull.at_least)
    return {name: value for name, value in fields.items() if value not in {"", None}}


def _edited(on: Editor, edit: Mapping[str, Any]) -> Result[Any, LakeSyncError]:
    table, row_id = edit["table"], edit["rowId"]
    if edit["op"] == "DELETE":
        return on.delete(table, row_id)
    write = on.insert if edit["op"] == "INSERT" else on.update
    return write(table, row_id, edit["columns"])


def _refusal(result: Result[Any, LakeSyncError]) -> Seen:
    return {"refused": result.error.code} if isinstance(result, Err) else {}


def _plain(row: Mapping[str, Any] | None) -> Any:
    """Return a row without its nulls: another client may keep no such cell."""
    if row is None:
        return None
    return {name: parse(canonical(value)) for name, value in row.items() if value is not None}
