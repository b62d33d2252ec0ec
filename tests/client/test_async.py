"""`AsyncClient`: the same client for any number of tasks; what is cancelled leaks nothing."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import (
    Actions,
    AsyncClient,
    Client,
    ClientStatus,
    MemoryTransport,
    QueuedAction,
    SyncLoop,
)
from lakesync.client.async_client import AsyncActions, AsyncQueuedAction, AsyncTransaction
from lakesync.client.storage.editor import Transaction
from lakesync.errors import ActionFailed, LakeSyncError, TransactionOpen, ValidationFailed
from lakesync.result import Err, Ok
from tests.client.support.acting import Shop
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import check_sound
from tests.support.some import some
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lakesync.client import SyncSummary
    from lakesync.core.messages import Pull, PullPage
    from lakesync.result import Result
    from tests.client.support.world import World

SOON_S = PATIENCE_S


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's tasks; every thread of its clients has ended then."""

    async def bounded() -> None:
        async with asyncio.timeout(4 * SOON_S):
            await scenario()

    asyncio.run(bounded())
    until_s = time.monotonic() + SOON_S
    while any("lakesync" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < until_s, threading.enumerate()
        time.sleep(0.01)


def opened(world: World, name: str = "a", **options: Any) -> AsyncClient:
    options.setdefault("transport", world.transport())
    return AsyncClient(
        world.folder / f"{name}.db",
        client_id=name,
        wall_clock=world.clock,
        durability="NORMAL",
        **options,
    )


def public(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "awaited"), [(Client, AsyncClient), (Transaction, AsyncTransaction)]
)
def test_the_async_client_has_the_same_methods_and_parameters_as_the_client(
    blocking: type, awaited: type
) -> None:
    # What `SyncLoop` asks of a client is asked of `AsyncClient.client`.
    of_loops = {"listen", "register_loop", "drop_requests", "hurry"}
    names = {name: value for name, value in public(blocking).items() if name not in of_loops}
    for name, function in some(names.items()):
        if not callable(function):  # a property
            assert hasattr(awaited, name), name
            continue
        twin = getattr(awaited, name)
        assert list(inspect.signature(twin).parameters) == list(
            inspect.signature(function).parameters
        ), name
        assert twin.__doc__, name
    assert set(public(awaited)) - set(public(blocking)) == set()


def test_the_async_client_edits_reads_and_syncs_as_the_client_does(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client, opened(world, "b") as other:
            (await client.declare("todos", {"title": "string"}, indexes=[["title"]])).unwrap()
            (await client.insert("todos", "t1", {"title": "x", "done": False})).unwrap()
            (await client.update("todos", "t1", {"done": True})).unwrap()
            assert len((await client.pending()).unwrap()) == 2
            assert await client.query("SELECT title FROM todos", as_=tuple) == Ok([("x",)])
            assert (await client.status).pending == 2
            assert (await client.sync()).unwrap().pushed.accepted == 2
            (await other.pull()).unwrap()
            assert await other.get("todos", "t1") == Ok({"title": "x", "done": True})
            (await other.delete("todos", "t1")).unwrap()
            (await other.push()).unwrap()
            (await client.pull()).unwrap()
            assert await client.get("todos", "t1") == Ok(None)
            assert isinstance(await client.query("DELETE FROM todos"), Err)
        assert "closed" in str((await client.query("SELECT 1")).error)  # type: ignore[union-attr]
        await client.close()

    run(scenario)


@pytest.mark.law("K24")
def test_concurrent_tasks_may_edit_watch_and_sync_one_async_client(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client:

            async def follow() -> None:
                async for rows in client.watch("SELECT count(*) AS n FROM todos"):
                    if rows[0]["n"] == 101:
                        break

            (await client.insert("todos", "first")).unwrap()
            watching = [asyncio.create_task(follow()) for _ in range(20)]

            async def edit(number: int) -> None:
                if number % 5:
                    (await client.insert("todos", f"t{number}", {"n": number})).unwrap()
                    return
                async with client.transaction() as tx:
                    (await tx.insert("todos", f"t{number}", {"n": number})).unwrap()
                    await asyncio.sleep(0)
                    (await tx.update("todos", f"t{number}", {"n": -number})).unwrap()

            await asyncio.gather(*map(edit, range(100)), *(client.sync() for _ in range(3)))
            await asyncio.gather(*watching)
            (await client.sync()).unwrap()

    run(scenario)
    assert len(world.rows()) == 101
    check_sound(world.client())


@pytest.mark.law("K24")
def test_edits_of_other_tasks_wait_for_a_transaction_and_edits_of_its_own_task_are_refused(
    world: World,
) -> None:
    async def scenario() -> None:
        async with opened(world) as client:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def transact() -> None:
                async with client.transaction() as tx:
                    (await tx.insert("todos", "t1")).unwrap()
                    inside.set()
                    await go_on.wait()
                    assert (await tx.query("SELECT count(*) AS n FROM todos")).unwrap() == [
                        {"n": 1}
                    ]
                    for refused in (client.insert("todos", "t2"), client.sync()):
                        result = await refused
                        assert isinstance(result, Err)
                        assert isinstance(result.error, TransactionOpen)
                    child = await asyncio.create_task(client.insert("todos", "t3"))
                    assert isinstance(child, Err)
                    with pytest.raises(TransactionOpen):
                        async with client.transaction():
                            pass
                    assert (await client.query("SELECT 1 AS x")).unwrap() == [{"x": 1}]
                (await client.insert("todos", "t4")).unwrap()

            transacting = asyncio.create_task(transact())
            await inside.wait()
            waiting = asyncio.create_task(client.insert("todos", "t5"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert await client.get("todos", "t5") == Ok(None)
            go_on.set()
            (await waiting).unwrap()
            await transacting
            rows = (await client.query("SELECT _row_id AS id FROM todos ORDER BY 1")).unwrap()
            assert [row["id"] for row in rows] == ["t1", "t4", "t5"]

    run(scenario)


@pytest.mark.law("K24")
def test_an_async_transaction_that_raises_or_is_cancelled_writes_nothing(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client:
            (await client.insert("todos", "t0")).unwrap()

            async def fail() -> None:
                async with client.transaction() as tx:
                    (await tx.insert("todos", "t1")).unwrap()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(LakeSyncError):
                async with client.transaction() as tx:
                    await tx.update("todos", "t1", {})
            with pytest.raises(RuntimeError):
                await tx.insert("todos", "t1")

            async def transact() -> None:
                async with client.transaction() as tx:
                    (await tx.insert("todos", "t2")).unwrap()
                    await asyncio.sleep(SOON_S)

            for delay_s in (0, 0.001, 0.05):
                task = asyncio.create_task(transact())
                await asyncio.sleep(delay_s)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                (await client.update("todos", "t0", {"turn": delay_s})).unwrap()
            assert len((await client.query("SELECT 1 FROM todos")).unwrap()) == 1

    run(scenario)
    check_sound(world.client())


@pytest.mark.law("K24")
def test_a_cancelled_edit_is_written_wholly_or_not_at_all(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client:
            for turn in range(60):
                task = asyncio.create_task(client.insert("todos", f"t{turn}", {"turn": turn}))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            (await client.insert("todos", "last")).unwrap()
            (await client.sync()).unwrap()
            rows = (await client.query("SELECT _row_id FROM todos")).unwrap()
            assert len(world.rows()) == len(rows)

    run(scenario)
    check_sound(world.client())


@pytest.mark.law("K24")
def test_a_watch_whose_reads_are_cancelled_misses_no_change(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client:
            (await client.insert("todos", "t0")).unwrap()
            async with client.watch("SELECT count(*) AS n FROM todos") as watch:
                assert await anext(watch) == [{"n": 1}]
                for turn in range(20):
                    task = asyncio.create_task(anext(watch))
                    (await client.insert("todos", f"t{turn + 1}")).unwrap()
                    for _ in range(turn):
                        await asyncio.sleep(0.0005)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    if not task.cancelled():
                        continue
                    rows = [{"n": 0}]
                    while rows != [{"n": turn + 2}]:
                        rows = await anext(watch)
            with pytest.raises(StopAsyncIteration):
                await anext(watch)
            with pytest.raises(ValidationFailed, match="nowhere"):
                await anext(client.watch("SELECT * FROM nowhere"))

    run(scenario)


@pytest.mark.law("K24")
def test_a_thousand_async_watches_share_a_few_threads_and_end_with_the_client(world: World) -> None:
    async def scenario() -> None:
        client = opened(world)
        (await client.insert("todos", "t0", {"n": 0})).unwrap()
        first = asyncio.Event()

        async def follow(number: int) -> None:
            async for _ in client.watch("SELECT * FROM todos WHERE n >= ?", (number % 2,)):
                first.set()

        tasks = [asyncio.create_task(follow(number)) for number in range(1_000)]
        await first.wait()
        (await client.update("todos", "t0", {"n": 1})).unwrap()
        assert len([t for t in threading.enumerate() if "lakesync" in t.name]) <= 4
        for task in tasks[:300]:
            task.cancel()
        await asyncio.sleep(0.05)
        await client.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in ended} == {type(None), asyncio.CancelledError}

    run(scenario)


def test_change_callbacks_run_in_the_event_loop(world: World) -> None:
    async def scenario() -> None:
        changes: asyncio.Queue[tuple[str, frozenset[str]]] = asyncio.Queue()
        here = threading.current_thread()

        def plain(tables: frozenset[str]) -> None:
            assert threading.current_thread() is here
            changes.put_nowait(("plain", tables))

        async def awaited(tables: frozenset[str]) -> None:
            await changes.put(("awaited", tables))

        async with opened(world) as client:
            client.on_change(plain)
            client.on_change(awaited, ["todos"])
            (await client.insert("todos", "t1")).unwrap()
            both = {await changes.get(), await changes.get()}
            assert both == {("plain", frozenset({"todos"})), ("awaited", frozenset({"todos"}))}

    run(scenario)


@pytest.mark.law("K24")
def test_a_cancelled_sync_stops_after_its_current_request_and_close_waits_for_it(
    world: World,
) -> None:
    requests: list[Pull] = []
    requested = threading.Event()

    class Slow(MemoryTransport):
        def pull(self, pull: Pull) -> PullPage:
            requests.append(pull)
            requested.set()
            time.sleep(0.2)
            return super().pull(pull)

    writer = world.client("writer")
    for number in range(40):
        writer.insert("todos", f"t{number}", {}).unwrap()
        writer.push().unwrap()

    async def scenario() -> None:
        slow = Slow(GATEWAY, world.gateway, world.gateway)
        async with opened(world, transport=slow, page_deltas=1) as client:
            task = asyncio.create_task(client.sync())
            await asyncio.to_thread(requested.wait, SOON_S)
            (await client.insert("todos", "mine")).unwrap()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(requests) <= 2
        assert (await client.status).last_error is not None

    run(scenario)
    assert len(world.client().pending().unwrap()) == 1


def test_a_sync_loop_syncs_an_async_client_in_the_background(world: World) -> None:
    async def scenario() -> None:
        synced: asyncio.Queue[bool] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def note(result: Result[SyncSummary, LakeSyncError]) -> None:
            here.call_soon_threadsafe(synced.put_nowait, isinstance(result, Ok))

        async with opened(world) as client:
            (await client.insert("todos", "t1")).unwrap()
            async with SyncLoop(client, on_result=note):
                assert await synced.get()
            assert (await client.status).pending == 0

    run(scenario)


def test_the_async_status_can_be_awaited_and_streamed(world: World) -> None:
    async def scenario() -> None:
        async with opened(world) as client:
            states = client.watch_status()
            assert await anext(states) == ClientStatus()
            (await client.insert("todos", "t1")).unwrap()
            assert await anext(states) == ClientStatus(pending=1)

    run(scenario)


@pytest.mark.law("X13")
def test_the_async_client_runs_retries_discards_and_clears_actions(world: World) -> None:
    async def scenario() -> None:
        shop = Shop(world)
        reported: list[Any] = []
        came = asyncio.Event()

        async def hear(result: Any) -> None:
            reported.append(result)
            came.set()

        async with opened(world, transport=shop.transport()) as client:
            actions = client.actions
            queued = (await actions.run("shipping", "ship", {"order": 1}, on_result=hear)).unwrap()
            late = await queued.result(0.01)
            assert isinstance(late, Err)
            assert late.error.code == "ACTION_RUNNING"
            waiting = [asyncio.create_task(queued.result()) for _ in range(3)]
            (await client.sync()).unwrap()
            assert await asyncio.gather(*waiting) == [Ok({"shipment": 1})] * 3
            await came.wait()
            assert reported == [Ok({"shipment": 1})]
            shop.fails.append(ActionFailed("no"))
            async with client.transaction() as tx:
                (await tx.insert("todos", "t1", {})).unwrap()
                second = (await tx.run_action("shipping", "ship", {"order": 2})).unwrap()
                started = (await actions.find(queued.action_id)).unwrap()
                blocked = await started.result(SOON_S)
                assert isinstance(blocked, Err)
                assert isinstance(blocked.error, TransactionOpen)
            assert len((await actions.pending()).unwrap()) == 1
            (await client.push()).unwrap()
            assert (await actions.send()).unwrap().dead == 1
            assert len((await actions.dead_letters()).unwrap()) == 1
            again = (await actions.retry(second, on_result=hear)).unwrap()
            (await actions.discard(again.action_id)).unwrap()
            (await actions.run("shipping", "ship")).unwrap()
            assert (await actions.clear()).unwrap() == 1
            assert isinstance(await again.entry(), Err)
            assert "ship" in repr((await actions.discover()).unwrap())
            left = (await actions.run("shipping", "ship")).unwrap()
            unheard = asyncio.create_task(left.result())
            await asyncio.sleep(0.05)
        assert isinstance(await unheard, Err)

    run(scenario)


@pytest.mark.law("K24")
def test_async_actions_have_the_same_methods_and_parameters_as_actions() -> None:
    for awaited, blocking in ((AsyncActions, Actions), (AsyncQueuedAction, QueuedAction)):
        for name in some(name for name in vars(awaited) if not name.startswith("_")):
            assert inspect.signature(getattr(awaited, name)).parameters.keys() == (
                inspect.signature(getattr(blocking, name)).parameters.keys()
            )
        missing = {name for name in vars(blocking) if not name.startswith("_")} - set(vars(awaited))
        assert missing <= {"due_s"}
