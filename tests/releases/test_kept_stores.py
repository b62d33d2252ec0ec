"""What releases stored, kept as it was: each is read by this one, and the last is how it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.deliveries import parse_claim
from lakesync.core.messages import OutcomeKind
from tests.support.builders import push
from tests.support.kept_store import EVENTS, FOLDER, NUMBER, contents, loaded, plain, written
from tests.support.releases import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY = range(1, NUMBER + 1)


def names(node: Any) -> Iterator[str]:
    for item in node["items"]:
        of, _, rest = item["pk"].partition("|")
        yield rest.partition("|")[0] or of


@pytest.mark.law("B14")
def test_this_release_stores_what_its_kept_store_holds() -> None:
    kept, _ = loaded(NUMBER)

    assert plain(written()) == plain(kept), (
        "what is stored has changed: may the release before read it, beside this one? See "
        "CONTRIBUTING.md. A store that was in no release yet is made anew: delete it, and run "
        "python -m tests.support.kept_store"
    )


@pytest.mark.law("B14")
@pytest.mark.parametrize("number", EVERY)
def test_everything_that_a_release_stored_is_read(number: int) -> None:
    kept, read = loaded(number)

    assert json.loads(json.dumps(contents(kept))) == read
    claims = {key: body for key, body in kept.objects.bodies.items() if key.startswith("claims/")}
    assert {parse_claim(key, body).gateway for key, body in claims.items()} == {GATEWAY}


@pytest.mark.law("B14")
@pytest.mark.parametrize("number", EVERY)
def test_pushes_flushes_and_checkpoints_continue_on_a_kept_store(number: int) -> None:
    kept, read = loaded(number)
    kept.time.now_ms += 600_000
    again = kept.release.pushes.push(GATEWAY, push(*EVENTS, client="meter"))
    batches = kept.release.flusher.flush(GATEWAY)

    assert [outcome.kind for outcome in again.outcomes] == [OutcomeKind.DUPLICATE] * len(EVENTS)
    assert (batches.batches, batches.finished) == (2, True)
    assert kept.release.builder.build(GATEWAY).checkpoint
    kept.release.declare(2)
    after = contents(kept)
    assert after["log"] == read["log"]
    assert after["rules"] == read["rules"]


def test_kept_store_has_every_kind_of_item_and_document() -> None:
    """Those of the key grammar, and the documents of S3."""
    kept, _ = loaded(NUMBER)

    assert set(names(plain(kept))) == {
        *("head", "heads", "log", "row", "mark", "config", "flush", "flushed", "client"),
        *("user", "revoked", "quota", "gateways", "destinations", "delivered"),
    }
    folders = {key.split("/")[0] + "/" + key.split("/")[2] for key in kept.documents()}
    assert folders >= {"claims/notes", "checkpoints/manifests", "checkpoints/chunks"}


def test_every_kept_store_is_covered_by_these_tests() -> None:
    assert {path.name for path in FOLDER.glob("store-*.json")} == {
        f"store-{number}.json" for number in EVERY
    }
