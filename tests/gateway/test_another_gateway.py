"""A gateway has an epoch from its first commit on, and refuses whoever belongs to another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.gateway_identity import identity_of, new_epoch, restored_at, was_restored
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.errors import AnotherGateway, CursorExpired, LakeSyncError
from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, puller, pusher

if TYPE_CHECKING:
    from lakesync.core.messages import Push

GATEWAY = "g"
OTHER = new_epoch("another gateway")


class Counted(MemoryBuffer):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in {"commit", "save_config", "raise_head", "change_lanes", "close_lane"}:
            super().__getattribute__("writes").append(name)
        return super().__getattribute__(name)


def gateway(*, tables: int = 1, buffer: MemoryBuffer | None = None) -> tuple[MemoryBuffer, str]:
    """Return the buffer of a gateway with a row in some tables, apart; and its epoch."""
    buffer, time = buffer or MemoryBuffer(), GivenTime(WALL_MS)
    for number in range(1, tables):
        administrator(buffer, time_=time).place_table(GATEWAY, f"t{number}", f"shard{number}")
    for number in range(tables):
        pusher(buffer, time_=time).push(GATEWAY, push(insert(at=at_ms(1), table=f"t{number}")))
    return buffer, buffer.heads(GATEWAY)[MAIN_LANE].epoch


@pytest.mark.law("B19")
@pytest.mark.parametrize("words", ["", SNAPSHOT])
@pytest.mark.parametrize("begins", ["a push", "a declaration", "a restore"])
def test_every_page_of_a_gateway_with_an_epoch_has_a_positive_cursor(
    begins: str, words: str
) -> None:
    """So a client may take an empty body for what no gateway sends."""
    buffer, time = MemoryBuffer(), GivenTime(WALL_MS)
    if begins == "a push":
        pusher(buffer, time_=time).push(GATEWAY, push(insert(at=at_ms(1), n=1)))
    else:
        administrator(buffer, time_=time).set_strict(GATEWAY, strict=True)
    if begins == "a restore":
        begin_epoch(buffer, GATEWAY, wall_clock=time.wall_clock)
    epoch = buffer.heads(GATEWAY)[MAIN_LANE].epoch

    for client in ("", epoch):
        page = puller(buffer, time_=time).pull(GATEWAY, Pull("r", 0, 1, client, words))
        assert page.epoch == epoch
        assert page.cursor > 0


@pytest.mark.law("B19")
@pytest.mark.parametrize("begins", ["a push", "a declaration"])
def test_gateway_keeps_the_epoch_of_its_first_commit(begins: str) -> None:
    buffer, time = MemoryBuffer(), GivenTime(WALL_MS)
    assert puller(buffer).pull(GATEWAY, Pull("r")).epoch == ""

    if begins == "a push":
        receipt = pusher(buffer, time_=time).push(GATEWAY, push(insert(at=at_ms(1), n=1)))
        assert receipt.epoch == buffer.heads(GATEWAY)[MAIN_LANE].epoch
    else:
        administrator(buffer, time_=time).place_table(GATEWAY, "todos", "hot")

    epoch = buffer.heads(GATEWAY)[MAIN_LANE].epoch
    assert len(epoch) == 16
    assert puller(buffer).pull(GATEWAY, Pull("r")).epoch == epoch
    again = pusher(buffer, time_=time).push(
        GATEWAY, replace(push(insert("r2", at=at_ms(2))), epoch=epoch)
    )
    assert (again.accepted, again.epoch) == (1, epoch)
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    assert buffer.heads(GATEWAY)[MAIN_LANE].epoch == epoch


@pytest.mark.law("B19")
def test_gateways_have_distinct_epochs() -> None:
    assert len({gateway()[1] for _ in range(20)}) == 20


@pytest.mark.law("B19")
@pytest.mark.parametrize(
    "wanted",
    [
        push(insert("r9", at=at_ms(9), table="t0", n=1)),
        push(insert("r9", at=at_ms(9), table="new", n=1)),
        push(insert("r9", at=at_ms(9), table="t0", n=1), insert("r9", at=at_ms(9), table="t1")),
        push(insert("r9", at=at_ms(10_000_000), table="t0", n=1)),
        push(),
    ],
    ids=["an edit", "a new table", "two shards", "a delta that is refused anyway", "nothing"],
)
@pytest.mark.parametrize("named", [OTHER, restored_at(OTHER, at_ms(1))])
@pytest.mark.parametrize("is_new", [False, True])
def test_push_with_another_gateways_epoch_is_refused_before_any_write(
    wanted: Push, named: str, *, is_new: bool
) -> None:
    buffer = Counted()
    if not is_new:
        gateway(tables=2, buffer=buffer)
    buffer.writes.clear()

    with pytest.raises(AnotherGateway) as refused:
        pusher(buffer).push(GATEWAY, replace(wanted, epoch=named))

    assert (refused.value.code, refused.value.status) == ("ANOTHER_GATEWAY", 409)
    assert "rebind" in refused.value.message
    assert buffer.writes == []


@pytest.mark.law("B19")
@pytest.mark.parametrize("named", [OTHER, restored_at(OTHER, at_ms(1))])
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("since", ["begin", "start", "middle", "end", "behind"])
def test_pull_with_another_gateways_epoch_is_refused_before_any_write(
    named: str, since: str, *, is_new: bool
) -> None:
    buffer = Counted()
    if not is_new:
        gateway(tables=3, buffer=buffer)
    top = max((head.commit for head in buffer.heads(GATEWAY).values()), default=9)
    cursor = {"start": 0, "middle": top - 1, "end": top, "behind": top + 9}.get(since, 0)
    buffer.writes.clear()

    with pytest.raises(AnotherGateway):
        puller(buffer).pull(
            GATEWAY,
            Pull("r", cursor, 10, named, SNAPSHOT if since == "begin" else "", at_least=top),
        )

    assert buffer.writes == []


@pytest.mark.law("B12", "B19")
def test_restored_epoch_keeps_the_gateways_identity_and_voids_earlier_epochs() -> None:
    buffer, epoch = gateway()
    top = buffer.heads(GATEWAY)[MAIN_LANE].commit
    first = begin_epoch(buffer, GATEWAY, wall_clock=lambda: WALL_MS)
    second = begin_epoch(buffer, GATEWAY, wall_clock=lambda: WALL_MS)

    assert epoch < first < second
    assert [identity_of(each) for each in (first, second)] == [epoch, epoch]
    assert [was_restored(each) for each in (epoch, first, second)] == [False, True, True]
    for before in (epoch, first):
        with pytest.raises(CursorExpired):
            puller(buffer).pull(GATEWAY, Pull("r", top, 10, before))
        with pytest.raises(CursorExpired):
            pusher(buffer).push(GATEWAY, replace(push(insert("r9", at=at_ms(9))), epoch=before))


@pytest.mark.law("B12", "B19")
def test_restore_of_a_backup_without_commits_begins_no_epoch() -> None:
    buffer = MemoryBuffer()
    assert begin_epoch(buffer, GATEWAY, wall_clock=lambda: WALL_MS) == ""

    pusher(buffer).push(GATEWAY, push(insert(at=at_ms(1), n=1)))

    assert buffer.heads(GATEWAY)[MAIN_LANE].epoch


@pytest.mark.law("B19")
def test_push_and_pull_without_an_epoch_are_served() -> None:
    buffer, epoch = gateway()
    for named in (None, ""):
        wanted = push(insert("r9", at=at_ms(9), n=1))
        assert (
            pusher(buffer, time_=GivenTime(WALL_MS))
            .push(GATEWAY, replace(wanted, epoch=named))
            .accepted
            == 1
        )
    page = puller(buffer).pull(GATEWAY, Pull("r"))
    assert (page.count, page.epoch) == (2, epoch)


@pytest.mark.law("B19")
def test_warm_process_refuses_the_old_epoch_after_the_gateway_is_recreated() -> None:
    buffer, epoch = gateway()
    time = GivenTime(WALL_MS)
    pushes, pulls = pusher(buffer, time_=time), puller(buffer, time_=time)
    pushes.push(GATEWAY, replace(push(insert("r2", at=at_ms(2), table="t0")), epoch=epoch))
    cursor = pulls.pull(GATEWAY, Pull("r", epoch=epoch)).cursor
    buffer._gateways.clear()
    time.now_ms += 5_000
    pusher(buffer, time_=time).push(GATEWAY, push(insert("r1", at=at_ms(6_000), table="t0")))
    now = buffer.heads(GATEWAY)[MAIN_LANE]
    assert now.commit > cursor

    def refusal(act: object) -> str:
        with pytest.raises(LakeSyncError) as refused:
            act()  # type: ignore[operator]
        return refused.value.code

    late = replace(push(insert("r3", at=at_ms(3), table="t0")), epoch=epoch)
    assert refusal(lambda: pulls.pull(GATEWAY, Pull("r", cursor, 10, epoch))) == "ANOTHER_GATEWAY"
    assert refusal(lambda: pushes.push(GATEWAY, late)) == "ANOTHER_GATEWAY"
    assert buffer.heads(GATEWAY)[MAIN_LANE] == now
