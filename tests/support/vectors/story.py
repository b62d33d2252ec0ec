"""Stories: a client, a real gateway in memory, others who edit, and a network that loses.

A story is drawn by a seed and a theme. It happens once, to the Python client, and what happened to
it is the trace: from then on nothing of the gateway is needed to play it again. Whoever reads a
trace need not know why a gateway answered as it did.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.checkpoint.store import Checkpoints
from lakesync.core.delta import Op, make_delta, parse
from lakesync.core.merge import view
from lakesync.core.messages import Pull, Push
from lakesync.core.schema import schemas_to_json
from lakesync.core.visibility import Viewer, rule_values
from lakesync.errors import LakeSyncError
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.declare import Declare
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.horizons import Forgetter, Trimmer, begin_epoch
from lakesync.ports import FlushState
from lakesync.wire import jsonish
from lakesync.wire.records import decode_row_state
from tests.support.gateways import Administrator, GivenTime
from tests.support.lake import Objects
from tests.support.vectors.case import WALL_MS, Chance
from tests.support.vectors.device import Device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lakesync.core.messages import PullPage, PushReceipt
    from tests.support.vectors.device import Event, Seen

GATEWAY: Final = "g1"
EVENTS_MAX: Final = 40
DRAWN: Final = (8, 12, 16, 22)
"""Events that are drawn; what remains is for the end, when all is well again."""
TABLES: Final = ("todos", "notes", "events")
ROWS: Final = ("r1", "r2", "\u00e9/3")
COLUMNS: Final = ("title", "owner", "n")
OTHERS: Final = ("a", "z", "\U0001f600")
"""Their ids order before and behind the client's own."""
ME: Final = "m"

EVENTS_SCHEMA: Final = {
    "table": "events", "append": True,
    "columns": [{"name": "n", "type": "number"}, {"name": "title", "type": "string"}],
}  # fmt: skip
NOTES_SCHEMA: Final = {
    "table": "notes", "deleteWins": True,
    "columns": [{"name": name, "type": kind} for name, kind in
                (("title", "string"), ("owner", "string"), ("n", "number"))],
}  # fmt: skip
MINE: Final = {"column": "owner", "op": "eq", "value": "jwt:sub"}
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"buckets": []},
    {"buckets": [{"name": "own", "tables": [], "filters": [MINE]}]},
    {"buckets": [{"name": "own", "tables": ["todos"], "filters": [MINE]},
                 {"name": "all", "tables": ["notes", "events"], "filters": []}]},
    {"buckets": [{"name": "all", "tables": [], "filters": [], "write": [MINE]}]},
    {"buckets": [{"name": "all", "tables": [], "filters": []}],
     "omit": [{"tables": ["todos"], "columns": ["n"]}]},
    {"buckets": [{"name": "all", "tables": ["todos"], "filters": []}]},
)  # fmt: skip

REFUSALS: Final = (
    ("RATE_LIMITED", 2), ("BODY_TOO_LARGE", 0), ("FORBIDDEN", 0), ("BACKPRESSURE_ERROR", 1),
    ("VALIDATION_ERROR", 0), ("INTERNAL_ERROR", 0), ("AUTH_ERROR", 0),
)  # fmt: skip
"""Refusals of whole requests: their codes, and after how many seconds to try again."""
WEIGHTS: Final[Mapping[str, int]] = {
    "edit": 8, "group": 0, "sync": 6, "answer": 10, "lost": 0, "lose answer": 0, "error": 0,
    "foreign": 0, "other": 6, "tick": 3, "skew": 0, "crash": 0, "rules": 0, "trim": 0,
    "back up": 0, "restore": 0,
    "broadcast": 0, "decide": 0, "anew": 0, "rebind": 0, "forget": 0,
}  # fmt: skip
THEMES: Final[Mapping[str, Mapping[str, int]]] = {
    "plain": {},
    "lossy": {"lost": 3, "lose answer": 4, "crash": 2},
    "crash": {"crash": 5, "lose answer": 1},
    "groups": {"group": 8, "edit": 3, "lose answer": 2, "error": 1},
    "refused": {"error": 4, "decide": 5, "group": 2},
    "foreign": {"foreign": 4, "decide": 2, "tick": 6},
    "clocks": {"skew": 5, "tick": 5, "decide": 1, "group": 1},
    "rules": {"rules": 3, "other": 10, "decide": 2, "crash": 1},
    "hidden": {"rules": 2, "other": 10, "lose answer": 2},
    "trimmed": {"trim": 3, "tick": 6, "crash": 1},
    "forgotten": {"forget": 3, "other": 10, "edit": 5, "sync": 4},
    "restored": {"back up": 3, "restore": 3, "lose answer": 1, "other": 8, "crash": 1},
    "sockets": {"broadcast": 8, "other": 10, "crash": 1},
    "events": {"lose answer": 2, "skew": 1, "crash": 1, "decide": 5},
    "late events": {"foreign": 4, "answer": 14, "decide": 3, "lose answer": 1, "tick": 5},
    "later events": {"foreign": 6, "answer": 18, "tick": 6, "sync": 9},
    "deletes win": {"other": 10, "broadcast": 2},
    "names": {"decide": 2},
    "another": {"anew": 2, "rebind": 3, "lose answer": 1},
    "conflicts": {"other": 14, "edit": 14, "broadcast": 2},
    "omitted": {"rules": 3, "decide": 2},
    "one way": {"lost": 1},
}


@dataclass
class Trace:
    """What happened to a client, and what was seen of it."""

    given: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    laws: set[str] = field(default_factory=set)


class Tokens:
    """Chance without chance: a story happens in the same way each time."""

    def __init__(self) -> None:
        self._given = 0

    def jitter(self) -> float:
        """Return the middle."""
        return 0.5

    def token(self) -> str:
        """Return a name that was never given before."""
        self._given += 1
        return f"{self._given:032x}"


class Story:
    """One gateway, one client, and what a seed lets happen to both."""

    def __init__(self, seed: int, theme: str, folder: Path) -> None:
        self._chance = Chance(f"{theme} {seed}")
        self._theme = theme
        self._buffer = MemoryBuffer()
        self._time = GivenTime(WALL_MS)
        self._tokens = Tokens()
        self._serve(self._buffer)
        self._claims: dict[str, Any] = {"sub": ME, "gw": GATEWAY}
        self._skew_ms = 0
        self._backup: Any = None
        self._asked: dict[str, Any] | None = None
        self._edited: list[str] = []
        first = ["notes"] if self._chance.is_lucky(4) else []
        self.trace = Trace(
            {
                "clientId": ME,
                "tables": list(TABLES),
                "pageDeltas": self._chance.one_of((1, 2, 100)),
                "firstTables": first,
            }
        )
        self._declare()
        self.device = Device(folder, self.trace.given)

    def tell(self) -> Trace:
        """Let everything happen, and then let all be well again."""
        weights = {**WEIGHTS, **THEMES[self._theme]}
        drawn = [name for name, weight in weights.items() for _ in range(weight)]
        try:
            drawn_max = self._chance.one_of(DRAWN)
            for _ in range(10 * drawn_max):
                if len(self.trace.events) >= drawn_max:
                    break
                getattr(self, "_" + self._chance.one_of(drawn).replace(" ", "_"))()
            self._end()
        finally:
            self.device.close()
        return self.trace

    # --- the client's part ------------------------------------------------------------------------

    def _happen(self, do: str, **what: Any) -> Seen:
        event = {"do": do, "wallMs": int(self._time.now_ms) + self._skew_ms, **what}
        seen = self.device.do(event)
        if "request" in seen or "synced" in seen:
            self._asked = seen.get("request")
        self.trace.events.append(event)
        self.trace.seen.append(seen)
        self._note(event, seen)
        return seen

    def _edit(self) -> None:
        self._happen("edit", edits=[self._drawn_edit()])

    def _group(self) -> None:
        self._happen("edit", edits=[self._drawn_edit() for _ in range(2 + self._chance.below(2))])
        self.trace.laws.add("K8")

    def _drawn_edit(self) -> dict[str, Any]:
        chance = self._chance
        table = self._drawn_table()
        if table == "events":
            row_id = f"e{len(self._edited)}"
            self._edited.append(row_id)
            columns: Any = {"n": chance.one_of((1, 2.5, "no number"))}
            return {"op": "INSERT", "table": table, "rowId": row_id, "columns": columns}
        op = chance.one_of(("INSERT", "UPDATE", "UPDATE", "DELETE"))
        if self._theme == "names" and chance.is_lucky(3):
            table = chance.one_of(("Todos", "TODOS", "todos"))
        edit = {"op": op, "table": table, "rowId": chance.one_of(ROWS)}
        return edit if op == "DELETE" else edit | {"columns": self._drawn_columns()}

    def _drawn_table(self) -> str:
        if self._theme.endswith("events"):
            return self._chance.one_of(("events", "events", "todos"))
        if self._theme == "deletes win":
            return self._chance.one_of(("notes", "notes", "todos"))
        return self._chance.one_of(("todos", "todos", "notes"))

    def _drawn_columns(self) -> dict[str, Any]:
        chance = self._chance
        columns: dict[str, Any] = {}
        for name in chance.some_of(COLUMNS, 3) or ["title"]:
            if name == "owner":
                columns[name] = chance.one_of((ME, ME, "a", None))
            elif name == "n":
                columns[name] = chance.one_of((0, 1, 2.5, 1e21, None))
            else:
                columns[name] = chance.text()[:12]
        if self._theme == "names" and chance.is_lucky(3):
            columns = {chance.one_of(("Title", "select", "rowid")): "x"}
        if self._theme == "refused" and chance.is_lucky(3):
            columns["n"] = "no number"
        return columns

    def _sync(self) -> None:
        if self.device.asks:
            return
        mode = self._chance.one_of(("push", "pull", "full")) if self._theme == "one way" else "full"
        self._happen("sync", mode=mode)
        if mode != "full":
            self.trace.laws.add("K38")

    def _crash(self) -> None:
        self._asked = None
        self._happen("crash")

    def _decide(self) -> None:
        refused = [each for each in self._outbox() if "code" in each]
        if not refused:
            return
        hlc = self._chance.one_of(refused)["hlc"]
        do = self._chance.one_of(("retry", "discard", "amend"))
        more = {"columns": {"n": 7}} if do == "amend" else {}
        self._happen(do, hlc=hlc, **more)
        self.trace.laws.add("K28" if do == "amend" else "K7")

    def _rebind(self) -> None:
        is_elsewhere = any(seen.get("synced") == "ANOTHER_GATEWAY" for seen in self.trace.seen[-6:])
        if is_elsewhere and not self.device.asks:
            self._happen("rebind", keep=self._chance.one_of(("edits", "nothing")))

    # --- the network's part -----------------------------------------------------------------------

    def _answer(self) -> None:
        if self._asked is None:
            return
        try:
            body = self._answered(self._asked)
        except LakeSyncError as error:
            self._happen("answer", error=_error_fields(error))
        else:
            self._happen("answer", body=body)

    def _lost(self) -> None:
        if self._asked is not None:
            self._happen("lost")

    def _lose_answer(self) -> None:
        if self._asked is not None:
            try:
                self._answered(self._asked)
            except LakeSyncError:
                return
            self._happen("lost")

    def _error(self) -> None:
        if self._asked is not None:
            code, retry_s = self._chance.one_of(REFUSALS)
            retry = {"retryAfterS": retry_s} if retry_s else {}
            self._happen("answer", error={"code": code, "error": "refused on purpose", **retry})

    def _foreign(self) -> None:
        if self._asked is not None:
            self._happen("foreign", status=self._chance.one_of((200, 302, 401, 403, 413, 429, 503)))

    def _broadcast(self) -> None:
        """Send what the last commit of another did, to a client that stood just before it."""
        if self.device.asks or self._rules_in_force():
            return
        since = self._newest()
        self._other()
        page = self._pulled(Pull(ME, since=since, deltas_max=100, at_least=self._newest()))
        if page.count and not page.has_more and not page.snapshot:
            self._happen("broadcast", body=_json(page), first=str(page.first), previous=str(since))

    # --- the gateway's part -----------------------------------------------------------------------

    def _serve(self, buffer: MemoryBuffer) -> None:
        self._buffer = buffer
        services: dict[str, Any] = {
            "wall_clock": self._time.wall_clock,
            "sleep_ms": self._time.sleep_ms,
            "chance": self._tokens,
        }
        self._pushes = PushService(buffer, **services)
        self._objects = Objects()
        self._checkpoints = Checkpoints(self._objects)
        self._pulls = PullService(
            buffer, wall_clock=self._time.wall_clock, checkpoints=self._checkpoints
        )
        self._admin = Administrator(buffer, **services)

    def _declare(self) -> None:
        if self._theme.endswith("events") or self._theme in {"refused", "clocks"}:
            self._admin.register_schema(GATEWAY, json.loads(json.dumps(EVENTS_SCHEMA)))
        if self._theme in {"deletes win", "refused", "conflicts"}:
            notes = {**NOTES_SCHEMA, "deleteWins": self._theme == "deletes win"}
            self._admin.register_schema(GATEWAY, json.loads(json.dumps(notes)))
        if self._theme in {"hidden", "one way"}:
            self._rules()

    def _answered(self, request: dict[str, Any]) -> Any:
        self._time.now_ms += 3
        if "push" in request:
            push = jsonish.decode_push(json.dumps(request["push"]).encode())
            receipt = self._pushes.push(
                GATEWAY, replace(push, claims=self._claims, own_cursor=True)
            )
            return self._receipt(receipt)
        if "schemas" in request:
            return schemas_to_json(self._admin.schemas_for(GATEWAY, self._claims))
        fields = {"clientId": ME, "removes": True, "ownCursor": True, **request["pull"]}
        pull = jsonish.decode_pull(json.dumps(fields).encode())
        return _json(self._pulled(pull))

    def _pulled(self, pull: Pull) -> PullPage:
        return self._pulls.pull(
            GATEWAY, replace(pull, claims=self._claims, removes=True, own_cursor=True)
        )

    def _receipt(self, receipt: PushReceipt) -> Any:
        for outcome in receipt.outcomes:
            if outcome.error is not None:
                self.trace.laws.update(_LAWS_OF.get(outcome.error.code, {"K7"}))
        return json.loads(jsonish.encode_receipt(receipt))

    def _other(self) -> None:
        chance = self._chance
        client, table = chance.one_of(OTHERS), self._drawn_table()
        op = chance.one_of((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
        row_id = chance.one_of(ROWS)
        if table == "events":
            op, row_id = Op.INSERT, f"{client}{len(self._edited)}{chance.below(9)}"
        columns = {} if op is Op.DELETE else self._drawn_columns()
        hlc = (int(self._time.now_ms) - chance.one_of((0, 0, 0, 5_000))) << 16
        delta = make_delta(op, table, row_id, columns, client_id=client, hlc=hlc)
        self._time.now_ms += 2
        claims = {"sub": client, "gw": GATEWAY}
        self._pushes.push(GATEWAY, Push(client, ((0, delta),), claims=claims))

    def _tick(self) -> None:
        self._time.now_ms += self._chance.one_of((1, 1_000, 20_000, 400_000))

    def _skew(self) -> None:
        self._skew_ms = self._chance.one_of((0, 60_000, 4_000, -60_000, -86_400_000, 3_600_000))

    def _rules(self) -> None:
        self._admin.save_rules(GATEWAY, json.loads(json.dumps(self._chance.one_of(RULES))))
        self.trace.laws.add("K15")

    def _trim(self) -> None:
        self._time.now_ms += 600_000
        top = self._newest()
        if not top:
            return
        for table in TABLES:
            self._buffer.save_flushed_table(GATEWAY, table, top)
        before = self._buffer.flush_state(GATEWAY)
        self._buffer.save_flush_state(GATEWAY, before, FlushState(top))
        Trimmer(self._buffer, wall_clock=self._time.wall_clock, keep_ms=0).trim(GATEWAY)

    def _forget(self) -> None:
        """Forget deletions, as retention does once a checkpoint has all rows."""
        if not self._newest():
            return
        self._time.now_ms += 600_000
        checkpoints = self._checkpoints
        clock = self._time.wall_clock
        Builder(self._buffer, self._objects, checkpoints, wall_clock=clock).build(GATEWAY)
        declare = Declare(
            self._buffer, wall_clock=clock, sleep_ms=self._time.sleep_ms, chance=self._tokens
        )
        Forgetter(self._buffer, checkpoints, declare, wall_clock=clock, keep_ms=0).forget(GATEWAY)
        self._trim()

    def _back_up(self) -> None:
        if self._newest():
            self._backup = _copied(self._buffer._gateways[GATEWAY])

    def _restore(self) -> None:
        if self._backup is None:
            return
        restored = MemoryBuffer()
        restored._gateways[GATEWAY] = self._backup
        self._backup = None
        self._time.now_ms += 60_000
        self._serve(restored)
        begin_epoch(restored, GATEWAY, wall_clock=self._time.wall_clock)
        self.trace.laws.update({"K12", "K13"})

    def _anew(self) -> None:
        self._serve(MemoryBuffer())
        self._backup = None
        self._declare()
        self._other()
        self.trace.laws.add("K36")

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Answer until the client has pushed and pulled everything, if there is room for that."""
        self._skew_ms = 0
        while len(self.trace.events) < EVENTS_MAX:
            if self._asked is not None:
                self._answer()
            elif self._is_quiet():
                self._compare()
                return
            else:
                self._time.now_ms += 400_000
                self._happen("sync", mode="full")

    def _is_quiet(self) -> bool:
        last = self.trace.seen[-1] if self.trace.seen else {}
        return (
            last.get("synced") == "ok"
            and self.trace.events[-1]["do"] == "answer"
            and (self._synced_fully())
        )

    def _synced_fully(self) -> bool:
        syncs = [event for event in self.trace.events if event["do"] == "sync"]
        return bool(syncs[-1]["mode"] == "full")

    def _compare(self) -> None:
        """Check the trace itself: a client that is done shows what the gateway lets it see."""
        if self._outbox():
            return
        expected = self._visible()
        shown = {table: rows for table, rows in self.device.rows().items() if table != "events"}
        assert shown == expected, (shown, expected)
        self.trace.laws.update({"K5", "K6"})

    def _visible(self) -> dict[str, dict[str, Any]]:
        config = self._buffer.config(GATEWAY)
        viewer = Viewer(config.rules, self._claims)
        rows: dict[str, dict[str, Any]] = {}
        for (table, row_id), stored in self._buffer._gateways[GATEWAY].rows.items():
            state = config.as_read(table, decode_row_state(stored.state))
            values = rule_values(state, config.rules.columns(table))
            if table == "events" or not viewer.sees(table, values):
                continue
            columns = view(viewer.shown_state(table, state))
            if columns is None:  # an update made it, and none of its columns is shown
                continue
            plain = {name: parse(raw) for name, raw in columns.items() if raw != b"null"}
            rows.setdefault(table.lower(), {})[row_id] = plain
        return {table: dict(sorted(of.items())) for table, of in rows.items()}

    # --- which laws it shows ----------------------------------------------------------------------

    def _note(self, event: Event, seen: Seen) -> None:
        laws = self.trace.laws
        laws.update(_LAWS_BY_EVENT.get(event["do"], set()))
        if "refused" in seen:
            laws.update({"K20"} | ({"K9"} if seen["refused"] == "NAME_TAKEN" else set()))
        if event["do"] == "answer" and "results" in event.get("body", {}):
            laws.update({"K2", "K3"})
        body = event.get("body", {})
        if body.get("snapshot") or body.get("resync"):
            laws.update({"K14", "K30"} if body.get("snapshot") else {"K15", "K33"})
        if seen.get("conflicts"):
            laws.add("K27")
        for each in seen.get("outbox", ()):
            laws.update(_LAWS_OF.get(each.get("code", ""), set()))
        if self._theme == "deletes win":
            laws.add("K32")

    def _outbox(self) -> list[Any]:
        for seen in reversed(self.trace.seen):
            if "outbox" in seen:
                return list(seen["outbox"])
        return []

    def _newest(self) -> int:
        heads = self._buffer.heads(GATEWAY).values()
        return max((head.commit for head in heads), default=0)

    def _rules_in_force(self) -> bool:
        rules = self._buffer.config(GATEWAY).rules
        return bool(rules.buckets or rules.omit)


_LAWS_BY_EVENT: Final = {
    "edit": {"K1", "K4"},
    "lost": {"K2", "K3"},
    "crash": {"K1", "K2"},
    "foreign": {"K7"},
    "rebind": {"K36"},
}
_LAWS_OF: Final = {
    "CLOCK_DRIFT": {"K10"},
    "OUT_OF_ORDER": {"K11"},
    "ROW_DELETED": {"K37"},
    "ROW_FORGOTTEN": {"K16"},
    "NAME_TAKEN": {"K9"},
    "COLUMN_OMITTED": {"K33"},
    "ATOMIC_PUSH_REFUSED": {"K8"},
    "SCHEMA_ERROR": {"K7"},
    "FORBIDDEN": {"K7"},
}


def _copied(items: Any) -> Any:
    """Return what a gateway has once more: the parts themselves never change."""
    logs = defaultdict(list, {lane: list(log) for lane, log in items.logs.items()})
    return replace(
        items, heads=dict(items.heads), logs=logs, rows=dict(items.rows), marks=dict(items.marks),
        flushed=dict(items.flushed), tokens=set(items.tokens), delivered=dict(items.delivered),
    )  # fmt: skip


def _json(page: PullPage) -> Any:
    return json.loads(jsonish.encode_page(page))


def _error_fields(error: LakeSyncError) -> dict[str, Any]:
    fields = {"code": error.code, "error": error.message}
    return fields | ({"retryAfterS": error.retry_after_s} if error.retry_after_s else {})
