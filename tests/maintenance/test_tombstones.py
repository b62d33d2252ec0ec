"""Forgetting tombstones: none that somebody must be told of, and nothing comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import EMPTY, fold, view
from lakesync.core.messages import OutcomeKind
from lakesync.errors import RowForgotten, Unavailable, ValidationFailed
from lakesync.maintenance import horizons
from lakesync.maintenance.horizons import ForgetReport
from lakesync.ports import HeadMoved
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.checkpoints import MINUTE_MS, Kept, Reader
from tests.support.gateways import GATEWAY, pusher
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import Commit

HOUR_MS = 60 * MINUTE_MS


def old(*, built: bool = True) -> Kept:
    """Return a gateway with rows, and tombstones of which all is flushed and trimmed."""
    gateway = Kept()
    for row in ("r1", "r2", "r3", "r4"):
        gateway.push(insert(row, at=at_ms(10), n=1, title="t"))
    gateway.push(delete("r1", at=at_ms(20)), delete("r2", at=at_ms(21)))
    gateway.push(insert("n1", at=at_ms(22), table="notes"))
    gateway.push(delete("n1", at=at_ms(23), table="notes"))
    gateway.push(update("r4", at=at_ms(30), n=2))
    gateway.flushed()
    if built:
        gateway.build()
    gateway.trim()
    return gateway


def sent(gateway: Kept, *deltas: Delta) -> PushReceipt:
    return gateway.pushes.push(GATEWAY, push(*deltas))


def horizon_of(gateway: Kept, table: str = "todos") -> int:
    return gateway.buffer.config(GATEWAY).tombstone_horizons.get(table, 0)


def codes(receipt: PushReceipt) -> list[str]:
    return [
        outcome.error.code if outcome.error else outcome.kind.value for outcome in receipt.outcomes
    ]


@pytest.mark.law("R5")
@pytest.mark.parametrize("built", [True, False])
def test_old_tombstones_are_forgotten(*, built: bool) -> None:
    gateway = old(built=built)

    report = gateway.forgetter().forget(GATEWAY)

    assert (report.rows, report.finished) == (3, True)
    assert set(gateway.rows()) == {("todos", "r3"), ("todos", "r4")}
    assert horizon_of(gateway, "todos") == horizon_of(gateway, "notes") > at_ms(23)


@pytest.mark.law("R5")
def test_tombstones_in_an_untrimmed_log_are_kept() -> None:
    gateway = old()
    gateway.push(insert("r5", at=at_ms(40)), delete("r5", at=at_ms(41)))
    gateway.flushed()
    gateway.time.now_ms += HOUR_MS

    report = gateway.forgetter().forget(GATEWAY)

    assert horizon_of(gateway) > at_ms(41)
    assert ("todos", "r5") in gateway.rows()
    assert report.rows == 3
    gateway.trim()
    gateway.build()
    assert gateway.forgetter().forget(GATEWAY).rows == 1


@pytest.mark.law("R5")
def test_tombstones_younger_than_the_retention_are_kept() -> None:
    gateway = old()
    keep_ms = int(gateway.time.now_ms) - WALL_MS - 21

    assert gateway.forgetter(keep_ms).forget(GATEWAY).rows == 2
    assert ("notes", "n1") in gateway.rows()


@pytest.mark.law("R5")
def test_no_tombstone_is_forgotten_before_the_log_is_first_trimmed() -> None:
    gateway = Kept()
    gateway.push(insert("r1", at=at_ms(1)), delete("r1", at=at_ms(2)))
    gateway.flushed()

    before = gateway.buffer.config(GATEWAY)
    assert gateway.forgetter().forget(GATEWAY) == ForgetReport()
    assert gateway.buffer.config(GATEWAY) is before
    assert Kept().forgetter().forget(GATEWAY) == ForgetReport()


def test_configuration_is_unchanged_when_there_is_nothing_to_forget() -> None:
    gateway = Kept()
    gateway.push(insert("r1", at=at_ms(1)))
    gateway.flushed()
    gateway.build()
    gateway.trim()

    before = gateway.buffer.config(GATEWAY)
    assert gateway.forgetter().forget(GATEWAY) == ForgetReport()
    assert gateway.buffer.config(GATEWAY) is before


@pytest.mark.law("R6")
@pytest.mark.parametrize("alone", [True, False])
def test_cached_tombstone_that_was_forgotten_does_not_accept_an_old_edit(*, alone: bool) -> None:
    """A duplicate would end in its client's rows, which no page will tell of the deletion."""
    gateway = old()
    assert codes(sent(gateway, update("r1", at=at_ms(15), n=9))) == ["duplicate"]
    gateway.forgetter().forget(GATEWAY)
    horizon = horizon_of(gateway)
    beside = [] if alone else [insert("r9", at=horizon + 1)]

    receipt = sent(gateway, update("r1", at=at_ms(15), n=9), *beside)
    assert codes(receipt) == ["ROW_FORGOTTEN"]
    assert codes(sent(gateway, delete("r1", at=at_ms(16)))) == ["duplicate"]


@pytest.mark.law("R6")
@pytest.mark.parametrize("alone", [True, False])
def test_cached_row_from_before_its_deletion_does_not_accept_an_old_edit(*, alone: bool) -> None:
    gateway = Kept()
    first = insert("r1", at=at_ms(10), n=1)
    gateway.push(first)
    other = pusher(gateway.buffer, time_=gateway.time)
    other.push(GATEWAY, push(delete("r1", at=at_ms(20))))
    gateway.flushed()
    gateway.build()
    gateway.trim()
    assert gateway.forgetter().forget(GATEWAY).rows == 1
    horizon = horizon_of(gateway)
    beside = [] if alone else [insert("r9", at=horizon + 1)]

    assert codes(sent(gateway, first, *beside)) == ["ROW_FORGOTTEN"]


@pytest.mark.law("R6")
def test_old_edit_of_a_forgotten_row_is_refused_with_advice() -> None:
    gateway = old()
    gateway.forgetter().forget(GATEWAY)
    horizon = horizon_of(gateway)

    receipt = sent(
        gateway,
        update("r1", at=at_ms(15), n=9),
        update("r1", at=horizon, n=9),
        delete("r2", at=at_ms(16)),
        update("r3", at=at_ms(31), n=9),
        insert("r2", at=horizon + 1, n=3),
        update("r2", at=at_ms(18), title="of before"),
    )

    assert receipt.accepted == 3
    assert codes(receipt) == ["ROW_FORGOTTEN", "ROW_FORGOTTEN", "duplicate", "ROW_FORGOTTEN"]
    refused = receipt.outcomes[0].error
    assert isinstance(refused, RowForgotten)
    assert (refused.retry.value, "again" in refused.message) == ("never", True)
    assert view(decode_row_state(gateway.rows()["todos", "r2"])) == {"n": b"3"}
    assert ("todos", "r1") not in gateway.rows()


@pytest.mark.law("R6")
@pytest.mark.parametrize("warm", [True, False])
def test_push_is_decided_again_when_tombstones_are_forgotten_before_its_commit(
    *, warm: bool
) -> None:
    """Another process forgets after the rows were read, and before the commit."""
    gateway = old()
    late = pusher(gateway.buffer, time_=gateway.time)
    if warm:
        late.push(GATEWAY, push(update("r1", at=at_ms(20), n=8)))
    committing = gateway.buffer.commit
    done: list[int] = []

    def commit(commit: Commit) -> None:
        if not done:
            done.append(gateway.forgetter().forget(GATEWAY).rows)
        committing(commit)

    gateway.buffer.commit = commit  # type: ignore[method-assign]
    receipt = late.push(GATEWAY, push(update("r1", at=at_ms(25), n=9)))

    assert done == [3]
    assert [outcome.kind for outcome in receipt.outcomes] == [OutcomeKind.REFUSED]
    assert ("todos", "r1") not in gateway.rows()


@pytest.mark.law("R6")
def test_row_inserted_again_meanwhile_is_not_forgotten() -> None:
    gateway = old()
    scanning = gateway.buffer.scan_rows

    def scan_rows(*asked: Any) -> Any:
        scan = scanning(*asked)
        if asked[1] == "todos":
            gateway.push(insert("r1", at=at_ms(HOUR_MS), n=7))
        return scan

    gateway.time.now_ms += HOUR_MS
    gateway.buffer.scan_rows = scan_rows  # type: ignore[method-assign,assignment]
    report = gateway.forgetter().forget(GATEWAY)

    assert report.rows == 2
    assert view(decode_row_state(gateway.rows()["todos", "r1"])) == {"n": b"7"}


@pytest.mark.law("R5", "R6")
@pytest.mark.parametrize("built", [True, False])
def test_old_deltas_are_accepted_in_tables_without_forgotten_tombstones(*, built: bool) -> None:
    gateway = old(built=False)
    gateway.push(insert("e1", at=at_ms(30), table="events"))
    gateway.flushed()
    if built:
        gateway.build()
    gateway.trim()
    assert gateway.forgetter().forget(GATEWAY).rows == 3

    receipt = sent(gateway, insert("e2", at=at_ms(1), table="events"),
                   insert("x1", at=at_ms(1), table="new"), insert("r9", at=at_ms(1)))  # fmt: skip

    assert gateway.buffer.config(GATEWAY).tombstone_horizons.keys() == {"notes", "todos"}
    assert (receipt.accepted, codes(receipt)) == (2, ["ROW_FORGOTTEN"])


def keeps(gateway: Kept, *, keep: bool = True) -> None:
    """Declare that the tombstones of a table are kept, or no longer."""
    columns = [{"name": name, "type": "json"} for name in ("n", "title", "p", "q")]
    body = {"table": "todos", "columns": columns, "keepTombstones": keep}
    gateway.admin.register_schema(GATEWAY, body)


@pytest.mark.law("R7")
def test_table_that_keeps_its_tombstones_accepts_deltas_of_any_age() -> None:
    gateway = old(built=False)
    keeps(gateway)
    gateway.build()
    assert gateway.forgetter().forget(GATEWAY).rows == 1

    receipt = sent(gateway, insert("r1", at=at_ms(15), n=9), insert("r9", at=at_ms(1), n=1))

    assert (receipt.accepted, codes(receipt)) == (2, ["duplicate"])
    assert view(decode_row_state(gateway.rows()["todos", "r1"])) is None
    assert view(decode_row_state(gateway.rows()["todos", "r9"])) == {"n": b"1"}
    assert gateway.buffer.config(GATEWAY).tombstone_horizons.keys() == {"notes"}

    keeps(gateway, keep=False)
    assert gateway.forgetter().forget(GATEWAY).rows == 2
    assert codes(sent(gateway, insert("r8", at=at_ms(1), n=1))) == ["ROW_FORGOTTEN"]


@pytest.mark.law("R7")
def test_tombstones_are_kept_if_their_table_is_set_to_keep_them_meanwhile() -> None:
    gateway = old()
    scanning = gateway.buffer.scan_rows

    def scan_rows(*asked: Any) -> Any:
        scan = scanning(*asked)
        if asked[1] == "todos":
            keeps(gateway)
        return scan

    gateway.buffer.scan_rows = scan_rows  # type: ignore[method-assign,assignment]

    assert gateway.forgetter().forget(GATEWAY).rows == 1
    assert gateway.rows().keys() >= {("todos", "r1"), ("todos", "r2")}
    assert horizon_of(gateway) == 0


@st.composite
def _step(draw: st.DrawFn) -> Delta | int:
    if draw(st.integers(0, 3)) == 0:
        return draw(st.integers(0, 12))
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
    columns = {} if op is Op.DELETE else draw(
        st.dictionaries(st.sampled_from("pq"), st.sampled_from([1, 2]), max_size=2)
    )  # fmt: skip
    return make_delta(
        op, "todos", draw(st.sampled_from(["r1", "r2"])), columns,
        client_id=draw(st.sampled_from(["a", "b"])), hlc=at_ms(draw(st.integers(1, 12))),
    )  # fmt: skip


steps: SearchStrategy[list[Delta | int]] = st.lists(_step(), max_size=16)
"""Deltas, pushed in this order; a number forgets what was deleted up to so many milliseconds."""


@pytest.mark.law("R6", "R7")
@settings(deadline=None)
@given(taken=steps, kept=st.booleans())
@example(taken=[insert("r1", at=at_ms(2), p=1), delete("r1", at=at_ms(5)), 6,
                insert("r1", at=at_ms(7), q=1), 8, update("r1", at=at_ms(3), p=2)],
         kept=False)  # fmt: skip
def test_late_deltas_never_restore_a_deleted_row(*, taken: list[Delta | int], kept: bool) -> None:
    """What is seen is what merging every accepted delta gives, with nothing ever forgotten."""
    gateway = Kept()
    if kept:
        keeps(gateway)
    accepted: dict[str, list[Delta]] = {"r1": [], "r2": []}
    for step in taken:
        if isinstance(step, int):
            gateway.flushed()
            gateway.trim()
            keep_ms = int(gateway.time.now_ms) - WALL_MS - step
            gateway.forgetter(keep_ms).forget(GATEWAY)
            continue
        receipt = gateway.pushes.push(GATEWAY, push(step, client=step.client_id))
        if receipt.accepted:
            accepted[step.row_id].append(step)
        else:
            assert codes(receipt) == ["ROW_FORGOTTEN"]
            assert not kept
            assert step.hlc <= horizon_of(gateway)
    for row, deltas in accepted.items():
        state = gateway.rows().get(("todos", row))
        seen = view(decode_row_state(state)) if state else None
        assert seen == view(fold(deltas, EMPTY))


@pytest.mark.law("R5")
def test_forgetting_killed_at_any_call_is_finished_by_the_next() -> None:
    for calls in range(1, 20):
        gateway = old()
        mortal = Life(calls).of(gateway.buffer)
        try:
            gateway.forgetter(buffer=mortal).forget(GATEWAY)
        except Killed:
            for table, _ in old().rows().keys() - gateway.rows().keys():
                assert horizon_of(gateway, table) > 0
            gateway.forgetter().forget(GATEWAY)
        else:
            assert calls > 1
            return
        assert set(gateway.rows()) == {("todos", "r3"), ("todos", "r4")}
    pytest.fail("forgetting takes more calls than this test allows")


def test_forgetting_that_ran_out_of_time_continues_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(horizons, "_SLICE_ROWS_MAX", 1)
    gateway = old()
    place, rows, calls = "", 0, 0
    while True:
        left = iter([True] * 2)
        report = gateway.forgetter().forget(
            GATEWAY,
            place=place,
            has_time=lambda left=left: next(left, False),  # type: ignore[misc]
        )
        rows, place, calls = rows + report.rows, report.place, calls + 1
        if report.finished:
            break

    assert (rows, place) == (3, "")
    assert calls > 2


@pytest.mark.parametrize("odd", ["todos", "todos|x", "|"])
def test_invalid_place_to_continue_at_is_refused(odd: str) -> None:
    if odd == "|":
        assert old().forgetter().forget(GATEWAY, place=odd).finished
        return
    with pytest.raises(ValidationFailed):
        old().forgetter().forget(GATEWAY, place=odd)


def test_forgetting_fails_and_removes_nothing_when_the_store_is_unavailable() -> None:
    gateway = old()

    def save_config(*_: object, **__: object) -> None:
        raise HeadMoved({})

    gateway.buffer.save_config = save_config  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        gateway.forgetter().forget(GATEWAY)

    assert len(gateway.rows()) == 5


@pytest.mark.law("R5", "R1")
def test_bootstrap_after_forgetting_gives_the_remaining_rows() -> None:
    gateway = old()
    gateway.forgetter().forget(GATEWAY)
    reader = Reader(gateway)
    reader.read()

    shown = {key: view(state) for key, state in reader.states.items() if view(state) is not None}
    assert shown == {key: view(decode_row_state(state)) for key, state in gateway.rows().items()}


def test_tombstone_horizon_survives_a_schema_change_and_is_never_lowered() -> None:
    gateway = old()
    gateway.forgetter().forget(GATEWAY)
    config = gateway.buffer.config(GATEWAY)
    body = {"table": "lists", "columns": [{"name": "n", "type": "integer"}]}
    gateway.admin.register_schema(GATEWAY, body)

    again = gateway.forgetter(HOUR_MS).forget(GATEWAY)

    assert again.rows == 0
    assert config.tombstone_horizons.keys() == {"todos", "notes"}
    assert gateway.buffer.config(GATEWAY).tombstone_horizons == config.tombstone_horizons
