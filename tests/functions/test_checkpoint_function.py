"""``GET /sync/{gateway}/checkpoint`` through its function: whole, in parts, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from lakesync.checkpoint import store
from lakesync.compat import follower_pulls
from lakesync.compat.follower_progress import Follower, pack
from lakesync.core.merge import fold, view
from lakesync.runtime import wiring
from lakesync.runtime.api import pull
from lakesync.wire.records import decode_records
from tests.functions.conftest import event
from tests.support.builders import at_ms, delete, insert, update
from tests.support.checkpoints import MINUTE_MS, Kept
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.delta import Delta
    from tests.functions.conftest import Answer, Functions

_OWN = {"sub": "phone-1", "gw": GATEWAY, "role": "client", "exp": 4102444800}
NO_QUERY: dict[str, str] = {}
MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}


@dataclass
class Served:
    """A gateway with a checkpoint of three tables, behind the function."""

    functions: Functions
    gateway: Kept

    def get(
        self,
        query: Mapping[str, str] = NO_QUERY,
        claims: Mapping[str, Any] = NO_QUERY,
        gzip: str = "",
    ) -> Answer:
        sent = event("pull_checkpoint", query=urlencode(query), **{**_OWN, **claims})
        path = f"/sync/{GATEWAY}/checkpoint"
        sent["rawPath"] = sent["requestContext"]["http"]["path"] = path
        if gzip:
            sent["headers"]["accept-encoding"] = gzip
        return self.functions.http("pull", sent)

    def rules(self, tables: list[str]) -> None:
        """Let each client see its own rows of some tables."""
        bucket = {"name": "mine", "tables": tables, "filters": [MINE]}
        self.gateway.admin.save_rules(GATEWAY, {"version": 1, "buckets": [bucket]})

    def rebuild(self) -> None:
        """Build another checkpoint, from behind all that there is."""
        self.gateway.time.now_ms += 10 * MINUTE_MS
        self.gateway.push(update("n1", at=at_ms(90), table="notes", owner="other"))
        self.gateway.flushed()
        self.gateway.build()


def frames(body: bytes) -> list[list[Delta]]:
    """Read a stream as existing clients do."""
    runs = []
    while body:
        size = int.from_bytes(body[:4], "big")
        assert len(body) >= 4 + size
        runs.append(decode_records(body[4 : 4 + size]))
        body = body[4 + size :]
    return runs


@pytest.fixture
def served(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(store, "PART_DELTAS_MAX", 4)
    gateway = Kept(chunk_bytes=1_500)
    columns = [{"name": "owner", "type": "string"}, {"name": "n", "type": "number"}]
    for table in ("lists", "notes", "todos"):
        schema = {"table": table, "columns": columns}
        gateway.admin.register_schema(GATEWAY, schema)
    for number in range(10):
        owner = "phone-1" if number % 5 == 0 else "other"
        gateway.push(insert(f"r{number}", at=at_ms(number), owner=owner, n=number))
    gateway.push(update("r5", at=at_ms(50), client="b", n=55), delete("r6", at=at_ms(51)))
    gateway.push(insert("n1", at=at_ms(60), table="notes", owner="other"))
    gateway.push(insert("l1", at=at_ms(61), table="lists", owner="phone-1"))
    gateway.flushed()
    gateway.build()
    monkeypatch.setattr(wiring, "buffer", lambda _: gateway.buffer)
    monkeypatch.setattr(wiring, "objects", lambda *_: gateway.objects)
    return Served(functions, gateway)


def test_a_checkpoint_request_before_the_first_build_is_not_found(functions: Functions) -> None:
    gateway = Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "objects", lambda *_: gateway.objects)
        answer = functions.http("pull", "pull_checkpoint")

    assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")


@pytest.mark.law("R3")
def test_an_existing_client_gets_the_whole_checkpoint_as_a_stream(served: Served) -> None:
    answer = served.get()

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-lakesync-checkpoint-stream"
    assert answer.headers["x-checkpoint-hlc"] == str(served.gateway.latest().since)
    runs = frames(answer.body)
    assert len(runs) == sum(table.parts for table in served.gateway.latest().tables.values())
    assert {delta.row_id for run in runs for delta in run} == {
        *(f"r{number}" for number in range(10)), "n1", "l1",
    }  # fmt: skip


@pytest.mark.law("F2")
def test_a_new_client_gets_each_row_of_a_checkpoint_as_one_insert(served: Served) -> None:
    deltas = [delta for run in frames(served.get().body) for delta in run]

    assert {delta.row_id: delta.op.name for delta in deltas} == {
        **{f"r{number}": "INSERT" for number in range(10)},
        "r6": "DELETE", "n1": "INSERT", "l1": "INSERT",
    }  # fmt: skip
    assert len(deltas) == 12
    (changed,) = [delta for delta in deltas if delta.row_id == "r5"]
    assert dict(changed.columns) == {"owner": b'"phone-1"', "n": b"55"}


@pytest.mark.law("F2")
def test_a_follower_gets_a_rows_deltas_from_a_checkpoint_unreduced(served: Served) -> None:
    served.gateway.buffer.save_client_state(GATEWAY, "phone-1", None, pack(Follower()))
    deltas = [delta for run in frames(served.get().body) for delta in run]

    of_row = [delta.op.name for delta in deltas if delta.row_id == "r5"]
    assert of_row == ["DELETE", "INSERT", "UPDATE"]
    assert [delta.op.name for delta in deltas if delta.row_id == "r6"] == ["DELETE"]


def test_a_checkpoint_is_compressed_when_the_client_accepts_gzip(served: Served) -> None:
    plain, packed = served.get(), served.get(gzip="gzip, deflate, br")

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.body == plain.body


@pytest.mark.law("R3", "V7")
def test_sync_rules_filter_the_rows_of_a_checkpoint_each_sent_as_one_insert(served: Served) -> None:
    served.rules(["todos", "lists"])
    served.rebuild()

    deltas = [delta for run in frames(served.get().body) for delta in run]

    assert {(delta.table, delta.row_id) for delta in deltas} == {
        ("todos", "r0"), ("todos", "r5"), ("lists", "l1"),
    }  # fmt: skip
    assert len(deltas) == 3
    assert {delta.op.name for delta in deltas} == {"INSERT"}
    (changed,) = [delta for delta in deltas if delta.row_id == "r5"]
    assert dict(changed.columns)["n"] == b"55"
    assert frames(served.get(claims={"sub": "nobody"}).body) == []


@pytest.mark.law("U9")
def test_no_checkpoint_answer_names_a_table_hidden_by_sync_rules(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.rules(["lists"])
    served.rebuild()
    nexts = [served.get({"table": "lists", "part": "0"}).headers.get("x-checkpoint-next")]
    hidden = served.get({"table": "todos", "part": "0"})
    monkeypatch.setattr(pull, "ANSWER_BYTES_MAX", 10)
    refused = served.get()

    assert nexts == [None]
    assert (hidden.status, hidden.json["code"]) == (404, "NOT_FOUND")
    assert hidden.json["error"] == served.get({"table": "none"}).json["error"]
    assert refused.json["code"] == "CHECKPOINT_TOO_LARGE"
    assert "lists 0 to" in refused.json["error"]
    assert not any(name in refused.json["error"] for name in ("notes", "todos"))


@pytest.mark.law("R3", "V4")
def test_a_checkpoint_from_before_narrower_sync_rules_is_not_served(served: Served) -> None:
    """The log behind it does not tell that `r5` has left sight since."""
    first = served.gateway.latest()
    served.gateway.push(update("r5", at=at_ms(80), client="c", owner="other"))
    served.rules(["todos", "lists"])

    assert served.get().status == 404
    assert served.get({"part": "0"}).status == 404
    named = served.get({"checkpoint": first.id, "part": "0"})
    assert (named.status, named.json["code"]) == (410, "CURSOR_EXPIRED")
    served.rebuild()
    rows = {delta.row_id for run in frames(served.get().body) for delta in run}
    assert rows == {"r0", "l1"}


@pytest.mark.law("R3")
def test_the_parts_of_a_checkpoint_read_in_turn_equal_the_whole(served: Served) -> None:
    whole = frames(served.get().body)
    runs = []
    query: dict[str, str] = {"part": "0"}
    while True:
        answer = served.get(query)
        assert answer.status == 200
        runs += frames(answer.body)
        following = answer.headers.get("x-checkpoint-next")
        if following is None:
            break
        query = dict(item.split("=") for item in following.split("&"))
        assert query["checkpoint"] == answer.headers["x-checkpoint-id"]

    # The whole is for existing clients, which get one insert of what was written in parts.
    assert [shown(run) for run in runs] == [shown(run) for run in whole]
    assert len(runs) > 3


def shown(deltas: list[Delta]) -> dict[tuple[str, str], Any]:
    by_row: dict[tuple[str, str], list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault((delta.table, delta.row_id), []).append(delta)
    return {key: view(fold(of_row)) for key, of_row in by_row.items()}


@pytest.mark.law("R3")
def test_parts_are_served_from_the_named_checkpoint_until_its_removal(served: Served) -> None:
    first = served.gateway.latest()
    served.gateway.push(insert("r99", at=at_ms(70), n=99))
    served.gateway.flushed()
    served.gateway.build()

    answer = served.get({"checkpoint": first.id, "table": "todos", "part": "1"})
    assert answer.headers["x-checkpoint-id"] == first.id
    for key in list(served.gateway.objects.bodies):
        if first.id in key:
            served.gateway.objects.delete_object(key)
    gone = served.get({"checkpoint": first.id, "table": "todos", "part": "1"})
    assert (gone.status, gone.json["code"]) == (410, "CURSOR_EXPIRED")
    served.gateway.push(insert("r100", at=at_ms(80)))
    served.gateway.flushed()
    served.gateway.trim()
    late = served.get({"checkpoint": served.gateway.checkpoints.ids(GATEWAY)[-1], "part": "0"})
    assert (late.status, late.json["code"]) == (410, "CURSOR_EXPIRED")


@pytest.mark.law("F8")
def test_a_checkpoint_too_large_for_one_answer_names_the_parts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "ANSWER_BYTES_MAX", 1_000)
    plain = served.get()
    monkeypatch.setattr(pull, "ANSWER_BYTES_MAX", 100)
    packed = served.get(gzip="gzip")

    for answer in (plain, packed):
        assert (answer.status, answer.json["code"]) == (404, "CHECKPOINT_TOO_LARGE")
        assert "lists 0 to 0, notes 0 to 0, todos 0 to 2" in answer.json["error"]


def test_a_checkpoint_request_that_reads_too_much_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.rules([])
    served.rebuild()
    monkeypatch.setattr(follower_pulls, "READ_BYTES_MAX", 500)

    answer = served.get(claims={"sub": "nobody"})

    assert (answer.status, answer.json["code"]) == (404, "CHECKPOINT_TOO_LARGE")


ID = "0" * 16 + "-" + "0" * 16


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"part": "-1"}, 400), ({"part": "x"}, 400), ({"part": "1.5"}, 400), ({"part": ""}, 400),
        ({"part": "9" * 30}, 400), ({"table": ""}, 400), ({"table": "a b"}, 400),
        ({"table": "a" * 65}, 400), ({"table": "..%2F..%2Fetc"}, 400), ({"table": "%00"}, 400),
        ({"checkpoint": "latest"}, 400), ({"checkpoint": "../x"}, 400),
        ({"table": "nothing", "part": "0"}, 404), ({"table": "todos", "part": "99"}, 404),
        ({"checkpoint": ID, "part": "0"}, 410),
    ],
)  # fmt: skip
def test_an_invalid_checkpoint_part_is_refused(
    served: Served, query: dict[str, str], status: int
) -> None:
    answer = served.get(query)

    assert answer.status == status
    assert set(answer.json) >= {"error", "code", "requestId"}


def test_a_token_of_another_gateway_reads_no_checkpoint(served: Served) -> None:
    answer = served.get(claims={"gw": "other"})

    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")
