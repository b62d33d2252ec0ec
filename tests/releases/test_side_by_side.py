"""This release and the next one at work at once, on the same items and objects.

So it is during a gradual deployment, and after one that was undone. The next release is modelled
by `tests.support.next_release`: whatever it writes holds more than this one knows.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections import Counter
from itertools import chain, count, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lakesync.buffer import item_format
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.deliveries import claims_of_message, parse_claim
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import OutcomeKind
from lakesync.wire.log_entries import inflate
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS, delete, insert, push, update
from tests.support.gateways import GivenTime
from tests.support.lake import Messages, Objects
from tests.support.modelled import LockedModel
from tests.support.next_release import ATTRIBUTE, NextObjects, NextRelease
from tests.support.readers import Reader, shown
from tests.support.releases import GATEWAY, Release, pages
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage

TABLES = ("todos", "notes")
ROWS = [(table, f"r{number}") for table in TABLES for number in range(6)]
STEPS = 150


class Deployment:
    """Both releases at once, and clients who meet now the one, now the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = GivenTime(WALL_MS)
        self.model = LockedModel()
        self.objects, self.queue = Objects(), Messages()
        more = NextRelease(self.model), NextObjects(self.objects), self.queue, self.time
        self.old = Release(self.model, self.objects, self.queue, self.time, seed)
        self.new = Release(*more, seed + 1)
        self.accepted: Counter[str] = Counter()
        self.readers = [Reader("ann"), Reader("ben")]
        self._numbers = count(1)
        self.columns = count()
        """How many a table has: none can be taken away."""

    @property
    def any(self) -> Release:
        """Either release, by chance."""
        return self.random.choice((self.old, self.new))

    def pages(self, pull: Pull) -> Iterator[PullPage]:
        return pages(pull, lambda: self.any)

    def push(self, release: Release) -> None:
        self.time.now_ms += 10
        client = self.random.choice(("phone", "laptop"))
        edits = [self._edit(client) for _ in range(self.random.randint(1, 4))]
        receipt = release.pushes.push(GATEWAY, push(*edits, client=client))
        outcomes = {outcome.index: outcome.kind for outcome in receipt.outcomes}
        assert OutcomeKind.REFUSED not in outcomes.values(), receipt.outcomes
        self.accepted.update(
            edit.delta_id for index, edit in enumerate(edits) if index not in outcomes
        )

    def _edit(self, client: str) -> Delta:
        number = next(self._numbers)
        at, value = stamp(int(self.time.now_ms), number % 1_000), {"n": number}
        table, row = self.random.choice(ROWS)
        if self.random.random() < 0.2:
            return insert(f"e{number}", at=at, client=client, table="events", **value)
        if self.random.random() < 0.1:
            return delete(row, at=at, client=client, table=table)
        make = self.random.choice((insert, update))
        return make(row, at=at, client=client, table=table, **value)

    def step(self) -> None:
        release, chance = self.any, self.random.random()
        if chance < 0.6:
            self.push(release)
        elif chance < 0.85:
            self.random.choice(self.readers).sync(self)  # type: ignore[arg-type] # gives pages
        elif chance < 0.9:
            release.flusher.flush(GATEWAY)
        elif chance < 0.93:
            release.declare(next(self.columns))
        elif chance < 0.96:
            release.open_lane()
        elif chance < 0.98:
            release.builder.build(GATEWAY)
        else:
            self.time.now_ms += 2 * VISIBLE_MS_MAX
            release.trimmer.trim(GATEWAY)

    def item(self, pk: str, sk: str) -> dict[str, Any]:
        """Return an item as it is stored."""
        item = self.model.dynamo.items.get((pk, sk))
        assert item is not None
        return dict(item)

    def claims(self) -> list[dict[str, Any]]:
        """Return the claims that were announced, each once, as the job reads them."""
        keys_ = set(chain.from_iterable(map(claims_of_message, self.queue.sent)))
        for key in keys_:
            parse_claim(key, self.objects.bodies[key])
        return [json.loads(self.objects.bodies[key]) for key in sorted(keys_)]


def run(seed: int) -> Deployment:
    """Let both releases work, and let the old one have the last word."""
    deployment = Deployment(seed)
    deployment.new.declare(next(deployment.columns))
    for _ in range(STEPS):
        deployment.step()
    for release in (deployment.new, deployment.old):
        deployment.push(release)
        release.declare(next(deployment.columns))
        release.open_lane()
        release.flusher.flush(GATEWAY)
    for reader in deployment.readers:
        reader.sync(deployment)  # type: ignore[arg-type] # gives pages
    return deployment


@pytest.fixture(scope="module", params=range(8))
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return run(request.param)


@pytest.mark.law("B14")
def test_every_client_ends_with_the_same_rows_whichever_release_served_it(
    deployment: Deployment,
) -> None:
    for release in (deployment.old, deployment.new):
        stored = release.buffer.rows(GATEWAY, ROWS)
        rows = shown({key: decode_row_state(row.state) for key, row in stored.items()})
        assert rows
        for reader in some(deployment.readers):
            seen = {key: row for key, row in reader.seen().items() if key[0] in TABLES}
            assert seen == rows


@pytest.mark.law("B14", "D1")
def test_every_edit_is_flushed_once_whichever_release_accepted_and_flushed_it(
    deployment: Deployment,
) -> None:
    claims = deployment.claims()
    rows = [
        row["_delta_id"]
        for claim in claims
        for row in pq.read_table(io.BytesIO(deployment.objects.bodies[claim["object"]])).to_pylist()
    ]
    spans: dict[str, list[tuple[int, int]]] = {}
    for claim in claims:
        spans.setdefault(claim["table"], []).append((int(claim["after"]), int(claim["last"])))

    assert Counter(rows) == deployment.accepted
    for ranges in some(spans.values()):
        assert all(before[1] == after[0] for before, after in pairwise(sorted(ranges)))


@pytest.mark.law("B14")
def test_fields_of_the_next_release_survive_writes_of_this_one(
    deployment: Deployment,
) -> None:
    main = item_format.head_key(GATEWAY, MAIN_LANE)
    flush = item_format.flush_pk(GATEWAY), item_format.FLUSH
    config = item_format.config_pk(GATEWAY), item_format.CONFIG
    document = json.loads(inflate(b64decode(deployment.item(*config)["d"]["B"])))

    for place in (main, flush, config):
        assert ATTRIBUTE in deployment.item(*place), place
    assert deployment.item(*main)["ln"]["S"].endswith(";added")
    assert document["added"] == {"deep": [1]}
    assert any(
        b'"added"' in body for key, body in deployment.objects.bodies.items() if "claims" in key
    )
