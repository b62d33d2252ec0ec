"""``functions/retain``: each task by its event, as the state machine asks for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryRemoval
from lakesync.checkpoint import flushed_from_json
from lakesync.core.destinations import Destination, Destinations
from lakesync.errors import Contention, InternalError, ValidationFailed
from lakesync.maintenance.erasure import QUIET_MS
from lakesync.runtime import retention, wiring
from tests.functions.conftest import Context, event
from tests.support.builders import WALL_MS, at_ms, delete, insert
from tests.support.checkpoints import Kept
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from tests.functions.conftest import Functions

DAY_MS = 86_400_000
SETTINGS = {
    "CHECKPOINT_EVERY_HOURS": "24",
    "CHECKPOINT_CHUNK_BYTES": "1048576",
    "CHECKPOINT_LAKE_ROWS": "2",
    "LOG_KEEP_DAYS": "7",
    "TOMBSTONE_KEEP_DAYS": "30",
}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Kept:
    kept = Kept()
    kept.push(insert("r1", at=at_ms(1)), insert("r2", at=at_ms(2)), delete("r1", at=at_ms(3)))
    kept.flushed()
    monkeypatch.setattr(wiring, "objects", lambda *_: kept.objects)
    monkeypatch.setattr(wiring, "wall_clock", kept.time.wall_clock)
    return kept


@pytest.fixture
def run(
    functions: Functions, gateway: Kept, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wiring, "buffer", lambda _: gateway.buffer)

    def task(name: str, *, remaining_ms: int = 300_000, **more: str) -> dict[str, Any]:
        wanted = event(f"retain_{name}") | more
        if "gateway" in wanted:
            wanted["gateway"] = GATEWAY
        answer: dict[str, Any] = functions.load("retain")(wanted, Context(remaining_ms))
        return answer

    return task


def test_one_slice_covers_a_single_gateway(run: Callable[..., dict[str, Any]]) -> None:
    assert run("list") == {"slices": [{"after": "", "until": ""}]}
    assert run("names") == {"gateways": [GATEWAY]}
    assert run("choose") == {"gateways": ["demo"], "failed": 0}


@pytest.mark.law("R4")
def test_a_slice_does_all_tasks_of_its_gateways(
    run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    gateway.time.now_ms += 31 * DAY_MS
    assert run("slice") == {"after": GATEWAY, "gateways": [], "finished": True}
    assert len(gateway.checkpoints.ids(GATEWAY)) == 1
    assert gateway.buffer.heads(GATEWAY)["main"].trimmed > 0
    assert set(gateway.rows()) == {("todos", "r2")}


@pytest.mark.law("R4")
def test_retention_tasks_trim_the_log_and_forget_tombstones_when_old_enough(
    run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    first = run("build")
    assert (first["rows"], first["finished"], first["place"]) == (2, True, "")
    assert run("build")["checkpoint"] == first["checkpoint"]
    assert int(run("trim")["horizon"]) < at_ms(1)  # nothing is a week old
    gateway.time.now_ms += 8 * DAY_MS
    assert int(run("trim")["horizon"]) <= int(first["since"])
    assert gateway.buffer.heads(GATEWAY)["main"].trimmed > 0
    assert run("forget", place="")["rows"] == 0  # nor a month
    gateway.time.now_ms += 30 * DAY_MS
    answer = run("forget", place="")
    assert (answer["rows"], answer["finished"], answer["place"]) == (1, True, "")
    assert set(gateway.rows()) == {("todos", "r2")}
    assert gateway.buffer.config(GATEWAY).tombstone_horizons["todos"] > at_ms(3) > WALL_MS
    assert run("clean") == {"objects": 0, "finished": True, "place": ""}


@pytest.mark.law("L13")
def test_a_large_checkpoint_is_planned_from_the_lake_unless_the_lake_lacks_tables(
    run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    assert run("plan")["flushed"] == ""
    run("build")
    gateway.push(insert("r3", at=at_ms(5)))
    gateway.flushed()
    flushed = flushed_from_json(run("plan")["flushed"])

    assert flushed.gateway == GATEWAY
    assert flushed.watermark == gateway.buffer.flush_state(GATEWAY).watermark
    in_its_place = Destination("w", "postgres", "w", frozenset({"notes"}), lake=False)
    gateway.buffer.save_destinations(GATEWAY, Destinations().with_one(in_its_place))
    assert run("plan")["flushed"] == "", "the lake lacks tables"


def test_a_retention_task_without_time_is_reported_unfinished(
    run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    assert run("build", remaining_ms=1_000)["finished"] is False
    run("build")
    gateway.time.now_ms += 40 * DAY_MS
    assert run("trim", remaining_ms=1_000)["finished"] is False
    run("trim")
    answer = run("forget", remaining_ms=1_000, place="")
    assert (answer["finished"], answer["place"]) == (False, "todos|")
    assert run("forget", place=answer["place"])["rows"] == 1


@pytest.mark.law("E1")
def test_a_deleted_gateway_has_no_further_retention_tasks(
    run: Callable[..., dict[str, Any]], gateway: Kept, functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    items = MemoryRemoval(gateway.buffer, functions.items)
    monkeypatch.setattr(wiring, "items", lambda _: items)
    run("build")
    unfinished = run("delete", remaining_ms=1_000)
    assert (unfinished["finished"], unfinished["gone"], unfinished["left"]) == (False, False, {})
    for name in ("plan", "build", "trim", "forget", "clean"):
        assert run(name) == {"place": "", "flushed": "", "finished": True}
    assert run("slice")["gateways"] == []
    deletion = run("delete")

    assert (deletion["finished"], deletion["gone"], deletion["proved"]) == (True, True, False)
    assert gateway.objects.bodies == {}
    gateway.time.now_ms += QUIET_MS
    assert run("delete")["proved"]
    assert run("names") == {"gateways": []}


def test_deletion_of_an_unknown_gateway_is_not_found(
    run: Callable[..., dict[str, Any]], gateway: Kept, functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    empty = MemoryBuffer()
    monkeypatch.setattr(wiring, "buffer", lambda _: empty)
    items = MemoryRemoval(empty, functions.items)
    monkeypatch.setattr(wiring, "items", lambda _: items)
    gateway.objects.bodies.clear()

    assert run("delete")["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "odd", [{"task": "delete", "gateway": GATEWAY}, {"task": "delete", "by": "ops"},
            {}, {"task": "all"}, {"task": "slice", "after": 7},
            {"task": "build"}, {"task": "trim", "gateway": 7},
            {"task": "forget", "gateway": GATEWAY, "place": 1},
            {"task": "forget", "gateway": GATEWAY, "place": "odd"},
            {"task": "build", "gateway": "a|b"}],
)  # fmt: skip
def test_a_malformed_retention_task_is_refused(
    odd: dict[str, Any], functions: Functions, run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    gateway.trim()
    with pytest.raises(ValidationFailed):
        functions.call("retain", odd)


def test_a_retriable_error_of_a_retention_task_is_raised(
    run: Callable[..., dict[str, Any]], gateway: Kept
) -> None:
    def heads(*_: object, **__: object) -> Any:
        raise Contention("busy")

    gateway.buffer.heads = heads  # type: ignore[method-assign]
    for name in ("build", "trim", "forget", "clean"):
        with pytest.raises(Contention):
            run(name)


def test_an_internal_error_of_a_retention_task_is_logged_and_counted(
    run: Callable[..., dict[str, Any]],
    gateway: Kept,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log: io.StringIO,
) -> None:
    def heads(*_: object, **__: object) -> Any:
        raise InternalError("DynamoDB refused Query: AccessDeniedException")

    monkeypatch.setattr(gateway.buffer, "heads", heads)
    with pytest.raises(InternalError):
        run("trim")
    [line] = map(json.loads, log.getvalue().splitlines())

    assert (line["level"], line["where"]) == ("ERROR", {"task": "trim", "gateway": GATEWAY})
    assert '"InternalErrors"' in capsys.readouterr().out


def test_the_retain_functions_docstring_names_the_retention_tasks() -> None:
    text = (retention.__doc__ or "").split()

    assert {"build", "trim", "forget", "clean"} <= set(text)
