"""What a gateway declares of its flushes: how long few commits wait, thresholds, budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakesync.core.config import (
    BUDGETS_MAX,
    BY_SCHEDULE,
    EVERY_S_MAX,
    FLUSH_BYTES_MAX,
    FLUSH_BYTES_MIN,
    GatewayConfig,
    config_from_json,
    config_to_json,
    flushing_to_json,
)
from lakesync.declare.schemas import read_flushing
from lakesync.errors import NameTaken, ValidationFailed
from lakesync.log.lanes import Limits
from lakesync.maintenance.flush import due_gateways
from tests.maintenance.test_flush import Lake
from tests.support.builders import at_ms, insert, push
from tests.support.gateways import GATEWAY, pusher
from tests.support.lake import unflushed

BUDGET = FLUSH_BYTES_MIN
WHOLE = {"everyS": 900, "bytes": 1_000_000, "tables": {"todos": 20_000}, "flushFormat": "json"}


def grow(lake: Lake, table: str, size: int, number: int = 0) -> None:
    """Push one row of about some bytes."""
    row = insert(f"{table}{number}", at=at_ms(number), table=table, text="x" * size)
    pusher(lake.buffer, time_=lake.time).push(GATEWAY, push(row))


def scheduled(lake: Lake, *, after_s: float = 0) -> list[str]:
    """Let time pass and the schedule run; returns the tables that are announced by then."""
    lake.time.now_ms += after_s * 1000
    lake.flusher().flush_if_due(GATEWAY, int(lake.time.now_ms))
    return sorted({batch["table"] for batch in lake.announced().values()})


@pytest.mark.law("D19")
def test_few_commits_are_flushed_after_the_declared_interval() -> None:
    lake = Lake()
    lake.admin.save_flushing(GATEWAY, {"everyS": 900})
    lake.fill(3)

    assert scheduled(lake) == []
    assert scheduled(lake, after_s=890) == []
    assert due_gateways(lake.buffer) == [GATEWAY]
    assert scheduled(lake, after_s=11) == ["Private", "notes", "todos"]
    assert unflushed(lake.buffer, GATEWAY) == 0
    lake.check()


@pytest.mark.law("D19")
def test_scheduled_flush_runs_every_time_without_a_declaration() -> None:
    lake = Lake()
    lake.fill(1)

    assert scheduled(lake) == ["todos"]


@pytest.mark.law("D19")
def test_commits_are_flushed_at_once_from_the_declared_bytes_on() -> None:
    lake = Lake()
    lake.admin.save_flushing(GATEWAY, {"everyS": 900, "bytes": 2 * BUDGET})
    grow(lake, "todos", BUDGET)
    assert scheduled(lake) == []

    grow(lake, "notes", BUDGET)

    assert scheduled(lake) == ["notes", "todos"]


@pytest.mark.law("D19")
def test_only_a_table_over_its_budget_is_flushed_before_the_interval() -> None:
    lake = Lake()
    budgets = {"todos": BUDGET, "notes": BUDGET}
    lake.admin.save_flushing(GATEWAY, {"everyS": 900, "tables": budgets})
    grow(lake, "notes", BUDGET - 2_000)
    grow(lake, "Private", 2 * BUDGET)
    assert scheduled(lake) == []

    grow(lake, "todos", BUDGET)

    assert scheduled(lake) == ["todos"]
    assert scheduled(lake) == ["todos"], "what was announced counts no more"
    assert scheduled(lake, after_s=901) == ["Private", "notes", "todos"]
    lake.check()


@pytest.mark.law("D19")
def test_push_requests_a_flush_from_the_declared_bytes_on() -> None:
    lake = Lake()
    lake.admin.save_flushing(GATEWAY, {"bytes": BUDGET})
    asked: list[str] = []
    service = pusher(lake.buffer, time_=lake.time, on_threshold=asked.append)
    for number in range(2):
        row = insert(f"r{number}", at=at_ms(number), text="x" * BUDGET)
        service.push(GATEWAY, push(row))
        assert len(asked) == number + 1
    assert Limits().flush_threshold_bytes > 3 * BUDGET


def test_flushing_declaration_is_unchanged_after_storing_and_reading() -> None:
    read = read_flushing(WHOLE)
    config = replace(GatewayConfig(), flushing=read)

    assert flushing_to_json(read) == WHOLE
    assert config_from_json(config_to_json(config)).flushing == read
    assert "flushing" not in config_to_json(replace(config, flushing=BY_SCHEDULE))
    assert read_flushing({}) == BY_SCHEDULE
    assert read_flushing({"bytes": 0, "everyS": 0}) == BY_SCHEDULE
    later = config_to_json(config) | {"flushing": WHOLE | {"ofLater": 1}}
    assert config_from_json(later).flushing == read


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"every": 900}, "every"),
        ({"everyS": EVERY_S_MAX + 1}, "everyS"),
        ({"everyS": -1}, "everyS"),
        ({"everyS": True}, "everyS"),
        ({"everyS": "900"}, "everyS"),
        ({"bytes": FLUSH_BYTES_MIN - 1}, "bytes"),
        ({"bytes": FLUSH_BYTES_MAX + 1}, "bytes"),
        ({"bytes": False}, "bytes"),
        ({"flushFormat": "csv"}, "flushFormat"),
        ({"flushFormat": []}, "flushFormat"),
        ({"tables": ["todos"]}, "tables"),
        ({"tables": {"to-dos": 20_000}}, "tables.to-dos"),
        ({"tables": {"todos": 0}}, "tables.todos"),
        ({"tables": {f"t{n}": 20_000 for n in range(BUDGETS_MAX + 1)}}, "tables"),
    ],
)
def test_invalid_flushing_declaration_is_refused_with_its_field_and_not_saved(
    body: Any, field: str
) -> None:
    lake = Lake()
    with pytest.raises(ValidationFailed) as refused:
        lake.admin.save_flushing(GATEWAY, body)

    assert refused.value.field == field
    assert lake.admin.flushing(GATEWAY) == BY_SCHEDULE


def test_budget_must_spell_its_table_as_the_gateway_does() -> None:
    lake = Lake()
    lake.fill(1)
    with pytest.raises(NameTaken):
        lake.admin.save_flushing(GATEWAY, {"tables": {"Todos": BUDGET}})


def test_table_metrics_report_unflushed_data_and_row_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = Lake()
    events = {"table": "events", "columns": [{"name": "n", "type": "integer"}], "append": True}
    lake.admin.register_schema(GATEWAY, events)
    lake.admin.register_schema(GATEWAY, events | {"table": "empty", "append": False})
    grow(lake, "todos", 1_000)
    grow(lake, "todos", 1_000, number=1)
    grow(lake, "notes", 5_000)
    service = pusher(lake.buffer, time_=lake.time)
    service.push(GATEWAY, push(insert("e", at=at_ms(5), table="events", n=1)))

    before: Any = lake.admin.table_metrics(GATEWAY)
    lake.flusher().flush(GATEWAY, table="notes")
    after: Any = lake.admin.table_metrics(GATEWAY)

    assert list(before) == ["empty", "events", "notes", "todos"]
    assert before["empty"] == {"unflushedBytes": 0, "unflushedDeltas": 0, "rows": 0}
    assert "rows" not in before["events"], "events have no row states"
    assert (before["todos"]["rows"], before["todos"]["unflushedDeltas"]) == (2, 2)
    assert 2_000 < before["todos"]["unflushedBytes"] < 3_000
    assert before["notes"]["unflushedBytes"] > 5_000
    assert after["notes"] == {"unflushedBytes": 0, "unflushedDeltas": 0, "rows": 1}
    assert after["todos"] == before["todos"]
    monkeypatch.setattr("lakesync.gateway.admin.ROWS_COUNTED_MAX", 1)
    monkeypatch.setattr("lakesync.gateway.admin.WAITING_DELTAS_MAX", 1)
    some: Any = lake.admin.table_metrics(GATEWAY)
    assert (some["todos"]["rows"], some["todos"]["moreRows"]) == (1, True)
    assert some["todos"]["moreUnflushed"] is True


def test_bytes_of_a_commit_are_attributed_to_each_of_its_tables() -> None:
    lake = Lake()
    rows = [insert("a", at=at_ms(1), table="todos", text="x" * 500),
            insert("b", at=at_ms(2), table="notes", text="x" * 5_000)]  # fmt: skip
    pusher(lake.buffer, time_=lake.time).push(GATEWAY, push(*rows, atomic=True))

    metrics: Any = lake.admin.table_metrics(GATEWAY)

    assert 500 < metrics["todos"]["unflushedBytes"] < 1_000
    assert 5_000 < metrics["notes"]["unflushedBytes"] < 5_500
    total = sum(one["unflushedBytes"] for one in metrics.values())
    assert total <= unflushed(lake.buffer, GATEWAY) < total + 200
