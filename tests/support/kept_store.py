"""A small gateway as it is stored: each kind of item, and each document on S3.

``tests/golden/store-1.json`` is what a release wrote. It never changes, as it is read for as long
as anybody may upgrade from there. What is written otherwise is kept beside it, under the next
number: change `NUMBER`, and run ``python -m tests.support.kept_store``.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.admission import ItemAccess, ItemQuotas
from lakesync.buffer.dynamo_items import DynamoItemStore
from lakesync.compat import follower_progress
from lakesync.compat.follower_progress import Follower, Position
from lakesync.core.destinations import NO_DESTINATIONS, Destination, destinations_to_json
from lakesync.core.gateway_identity import identity_of
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.core.rules import rules_from_stored
from lakesync.ports import DeliveryState, Quota, Revocation, Usage
from lakesync.wire.log_entries import inflate
from lakesync.wire.records import decode_records
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.gateways import GivenTime
from tests.support.lake import Messages, Objects
from tests.support.modelled import LockedModel
from tests.support.releases import GATEWAY, TABLE, Release, pages
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

FOLDER: Final = ROOT / "tests" / "golden"
NUMBER: Final = 1
"""Of the kept store that is as this release writes it."""
EVENTS: Final = tuple(
    insert(f"e{number}", at=at_ms(number), client="meter", table="events", n=number)
    for number in (1, 2)
)
RULES: Final = {
    "version": 1,
    "buckets": [
        {"name": "all", "tables": ["notes", "todos", "events"], "filters": [], "write": []}
    ],
}
ROWS: Final = {
    "version": 1,
    "buckets": [
        {"name": "some", "tables": [], "filters": [{"column": "n", "op": "gt", "value": 1}]}
    ],
}
_MINUTE_MS: Final = 60_000
_PARQUET: Final = ".parquet"
_NOT_DEFLATED: Final = frozenset({"row"})
_DIGEST: Final = "h"


class Kept:
    """A gateway's stores, and this release's functions over them."""

    def __init__(self, now_ms: int = WALL_MS) -> None:
        self.time = GivenTime(now_ms)
        self.model = LockedModel()
        self.objects, self.queue = Objects(), Messages()
        self.release = Release(self.model, self.objects, self.queue, self.time, 0)
        self.access = ItemAccess(DynamoItemStore(TABLE, self.release.caller))
        self.quotas = ItemQuotas(DynamoItemStore(TABLE, self.release.caller))

    def items(self) -> list[dict[str, Any]]:
        collections = vars(self.model.dynamo.items)["_collections"]
        return [
            dict(collections[pk].items[sk][0])
            for pk in sorted(collections)
            for sk in collections[pk].keys
        ]

    def documents(self) -> dict[str, bytes]:
        """Return the objects but for the rows of batches, whose bytes are Parquet's matter."""
        stored = sorted(self.objects.bodies.items())
        return {key: body for key, body in stored if not key.endswith(_PARQUET)}


def written() -> Kept:
    """Let this release store one of each kind."""
    kept = Kept()
    release = kept.release
    release.declare(1)
    release.admin.save_rules(GATEWAY, RULES)
    release.admin.place_table(GATEWAY, "notes", "apart")
    release.pushes.push(GATEWAY, push(*EVENTS, client="meter"))
    edits = [insert(at=at_ms(3), title="é", n=1), update("r2", at=at_ms(4), table="notes", n=2)]
    release.pushes.push(GATEWAY, push(*edits))
    release.open_lane()
    one = Destination(
        "warehouse", "postgres", "url", frozenset({"notes"}), rules_from_stored(ROWS),
        {"notes": "app.notes"}, "soft",
    )  # fmt: skip
    assert release.buffer.save_destinations(GATEWAY, NO_DESTINATIONS.with_one(one))
    release.buffer.save_delivery_state(GATEWAY, "warehouse", "notes", DeliveryState(3, 1, "", 5))
    kept.time.now_ms += 2 * _MINUTE_MS
    release.flusher.flush(GATEWAY)
    kept.time.now_ms += 2 * _MINUTE_MS
    release.builder.build(GATEWAY)
    release.pushes.push(GATEWAY, push(delete("r2", at=at_ms(5), table="notes"), atomic=True))
    release.pushes.push(GATEWAY, push(update(at=at_ms(6), title="long " * 300)))
    follower = follower_progress.pack(Follower(7, Position(5), scope="s"))
    assert release.buffer.save_client_state(GATEWAY, "c1", None, follower)
    kept.access.bind(GATEWAY, "c1", "ann")
    kept.access.revoke(GATEWAY, Revocation("user", "ben", WALL_MS, "root"))
    kept.quotas.set_quota(GATEWAY, Quota(pushes=5, deltas=None, bytes=7))
    kept.quotas.report(GATEWAY, 3, Usage(1, 2, 3))
    return kept


def loaded(number: int) -> tuple[Kept, dict[str, Any]]:
    body = json.loads((FOLDER / f"store-{number}.json").read_text("utf-8"))
    kept = Kept(body["nowMs"])
    for item in body["items"]:
        kept.model.dynamo.items.put(item)
    kept.objects.bodies = {key: b64decode(text) for key, text in body["objects"].items()}
    return kept, body["read"]


def plain(kept: Kept) -> dict[str, Any]:
    """Return what is stored without what differs between gateways and between deflating libraries.

    A gateway's identity is random.
    """
    identity = identity_of(kept.release.buffer.all_heads(GATEWAY)[MAIN_LANE].epoch)
    stored = {
        "items": [{name: _plain(item, name) for name in sorted(item)} for item in kept.items()],
        "objects": {key: body.hex() for key, body in kept.documents().items()},
    }
    text = json.dumps(stored).replace(identity, "").replace(identity.encode().hex(), "")
    read: dict[str, Any] = json.loads(text)
    return read


def _plain(item: dict[str, Any], name: str) -> Any:
    ((kind, value),) = item[name].items()
    if kind != "B" or name == _DIGEST:
        return value
    raw = b64decode(value)
    of = item["pk"]["S"].split("|")
    return (raw if of[1] in _NOT_DEFLATED else inflate(raw)).hex()


def contents(kept: Kept) -> dict[str, Any]:
    """Ask a release for all that is stored; it answers in words that stay."""
    buffer, release = kept.release.buffer, kept.release
    config, heads = buffer.config(GATEWAY), buffer.all_heads(GATEWAY)
    flushed, follower = buffer.flush_state(GATEWAY), buffer.client_state(GATEWAY, "c1")
    known = follower_progress.unpack(follower)
    client = kept.access.client(GATEWAY, "c1")
    return {
        "gateways": buffer.gateways(),
        "schemas": {name: len(schema.columns) for name, schema in config.schemas.items()},
        "tables": sorted(config.tables),
        "rules": [bucket.name for bucket in config.rules.buckets],
        "shards": config.layout.shards(),
        "open": heads[MAIN_LANE].lanes.open(),
        "heads": {lane: str(head.commit) for lane, head in sorted(heads.items())},
        "flushed": [str(flushed.watermark), str(flushed.until)],
        "flushedTables": {k: str(v) for k, v in buffer.flushed_tables(GATEWAY).items()},
        "follower": known and [known.proven.since, known.scope],
        "user": client and client.user,
        "revoked": [asdict(one) for one in kept.access.revocations(GATEWAY)],
        "destinations": destinations_to_json(buffer.destinations(GATEWAY))["destinations"],
        "deliveries": {
            table: asdict(state)
            for table, state in buffer.delivery_states(GATEWAY, "warehouse").items()
        },
        "quota": kept.quotas.quota(GATEWAY)._asdict(),
        "log": [delta.delta_id for delta in _deltas(release, Pull("new"))],
        "snapshot": [
            [delta.table, delta.row_id, delta.op.name, [name for name, _ in delta.columns]]
            for delta in _deltas(release, Pull("new", snapshot=SNAPSHOT))
        ],
    }


def _deltas(release: Release, pull: Pull) -> list[Delta]:
    every = pages(pull, lambda: release)
    return [delta for page in every for run in page.records for delta in decode_records(run)]


if __name__ == "__main__":
    path = FOLDER / f"store-{NUMBER}.json"
    if not path.exists():
        one = written()
        objects = {key: b64encode(body).decode() for key, body in one.documents().items()}
        body = {"nowMs": int(one.time.now_ms), "items": one.items(), "objects": objects}
        text = json.dumps(body | {"read": contents(one)}, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", "utf-8")
