"""A batch is read back the same, whether its object is Parquet or JSON for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.lake.parquet import ParquetEncoder, batch_table, read_batch
from lakesync.core.config import JSON
from lakesync.core.deliveries import parse_claim, staged_batch
from lakesync.errors import UpgradeRequired, ValidationFailed
from lakesync.maintenance.flush import Batch, batches
from lakesync.ports import BatchRow
from lakesync.wire.batch_json import decode_batch, encode_batch
from tests.support.builders import at_ms, insert, update
from tests.support.strategies import deltas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta


def batch_of(given_deltas: Sequence[Delta]) -> Batch:
    """Return a batch of one table's deltas, a commit each, as a flush in JSON makes it."""
    rows = [
        BatchRow(n, 0, d.op.name, d.row_id, d.client_id, d.hlc, d.delta_id, d.columns)
        for n, d in enumerate(given_deltas, 3)
    ]
    [batch] = batches("acme", "todos", rows, 2, JSON)
    return batch


def as_json(batch: Batch) -> bytes:
    return encode_batch(batch.gateway, batch.table, batch.after, batch.last, batch.rows)


@pytest.mark.law("D21")
@given(st.lists(deltas(tables=st.just("todos")), min_size=1, max_size=4))
def test_json_and_parquet_give_the_same_deltas_and_the_same_table(
    given_deltas: list[Delta],
) -> None:
    batch = batch_of(given_deltas)
    body, parquet = as_json(batch), ParquetEncoder().encode(batch.rows, batch.columns)
    claim = parse_claim(batch.claim_key, batch.claim(None, len(body)).encode())

    assert decode_batch(body) == list(batch.rows)
    assert batch_table(body).equals(batch_table(parquet))
    read = read_batch(body, claim)
    assert read == read_batch(parquet, claim)
    assert [one.delta for one in read] == given_deltas


@pytest.mark.law("D21")
def test_json_envelope_lists_its_range_and_one_delta_per_line() -> None:
    values: dict[str, Any] = {
        "Title": "é\n",
        "big": 2**53 + 2,
        "nothing": None,
        "deep": {"a": [1.5, {}]},
    }
    made = [insert("r1", at=at_ms(1), **values), update("r2", at=at_ms(2), n=1)]
    batch = batch_of(made)
    body = as_json(batch)

    envelope = json.loads(body)
    assert {name: envelope[name] for name in envelope if name != "deltas"} == {
        "version": 1,
        "gateway": "acme",
        "table": "todos",
        "range": {"after": "2", "last": "4"},
        "count": 2,
    }
    first = envelope["deltas"][0]
    assert first == {
        "commit": "3", "ordinal": 0, "op": "INSERT", "rowId": "r1",
        "clientId": made[0].client_id, "hlc": str(made[0].hlc), "deltaId": made[0].delta_id,
        "columns": [{"column": name, "value": json.loads(value)}
                    for name, value in made[0].columns],
    }  # fmt: skip
    assert "é" in body.decode()
    assert len(body.splitlines()) == 4
    assert as_json(batch) == body
    assert batch.object_key == f"staging/acme/todos/{2:020d}-{4:020d}.json"
    listed = staged_batch(batch.object_key, None)
    assert listed is not None
    assert (listed.after, listed.last) == (2, 4)


@pytest.mark.law("D21")
def test_damaged_envelope_and_later_version_are_refused() -> None:
    batch = batch_of([insert("r1", at=at_ms(1), n=1), insert("r2", at=at_ms(2), n=2)])
    body = as_json(batch)
    envelope: dict[str, Any] = json.loads(body)
    others = [
        {"version": 1},
        envelope | {"count": 1},
        envelope | {"deltas": [{}, {}]},
        envelope | {"deltas": envelope["deltas"][:1]},
    ]
    for bad in (body[:-9], body[:1], *(json.dumps(other).encode() for other in others)):
        with pytest.raises(ValidationFailed):
            batch_table(bad)
    with pytest.raises(UpgradeRequired):
        batch_table(json.dumps(envelope | {"version": 2}).encode())
