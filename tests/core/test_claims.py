"""What a message of the lake's queue announces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakesync.core.deliveries import announcement, claims_of_message, tables_of_message

FIRST, SECOND = "claims/acme/todos/1-2.json", "claims/acme/lists/1-2.json"


@pytest.mark.parametrize("more", [(), (SECOND,), (SECOND, "claims/acme/todos/2-3.json")])
def test_a_message_names_all_its_claims(more: tuple[str, ...]) -> None:
    body = announcement(FIRST, "staging/acme/todos/1-2.parquet", more=more)

    assert claims_of_message(body) == (FIRST, *more)
    assert tables_of_message(body) == {"acme/todos"} | ({"acme/lists"} if more else set())


def test_message_keeps_its_first_claim_in_the_fields_that_older_releases_read() -> None:
    body = announcement(FIRST, "staging/acme/todos/1-2.parquet", more=[SECOND])

    said = json.loads(body)
    assert (said["claim"], said["object"]) == (FIRST, "staging/acme/todos/1-2.parquet")


@pytest.mark.parametrize(
    "body",
    [
        "{", "[]", "7", '{"replayed": true}', '{"claim": 7}', '{"claim": "claims/acme/todos"}',
        '{"claim": "claims//todos/1-2.json"}', announcement("deliveries/acme/warehouse/todos/"),
    ],
)  # fmt: skip
def test_message_that_is_no_lake_announcement_names_no_claims(body: str) -> None:
    assert claims_of_message(body) == ()
    assert tables_of_message(body) == frozenset()


@pytest.mark.parametrize("more", [7, None, {}, "claims", [7], ["deliveries/acme/w/t/1-2.json"]])
def test_message_with_an_unreadable_part_names_no_claims(more: Any) -> None:
    """Whoever gets it takes everything that waits, so nothing is passed over."""
    assert claims_of_message(json.dumps({"claim": FIRST, "more": more})) == ()
