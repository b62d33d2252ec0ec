"""Local transactions: who belongs to one, and what becomes of everything else meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.errors import TransactionOpen, ValidationFailed
from lakesync.result import Err, Ok
from tests.client.support.world import check_sound, reopened, rows_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Client
    from tests.client.support.world import World


class _Undone(Exception):
    """The app gives a transaction up."""


def _refused(result: object) -> None:
    assert isinstance(result, Err)
    assert result.error.code == "TRANSACTION_OPEN"
    assert "transaction()" in str(result.error)


@pytest.mark.law("K1")
def test_an_edit_of_another_task_is_refused_during_a_transaction(
    world: World,
) -> None:
    client = world.client()

    async def transfer() -> None:
        with client.transaction() as tx:
            tx.insert("accounts", "a", {"n": 1}).unwrap()
            await asyncio.sleep(0)
            raise _Undone

    async def note() -> object:
        return client.insert("notes", "n1", {"text": "kept"})

    async def both() -> list[Any]:
        return list(await asyncio.gather(transfer(), note(), return_exceptions=True))

    undone, noted = asyncio.run(both())

    assert isinstance(undone, _Undone)
    _refused(noted)
    assert rows_of(client) == {}
    client.insert("notes", "n1", {"text": "kept"}).unwrap()
    assert rows_of(reopened(world, client)) == {("notes", "n1"): {"text": "kept"}}


OTHERS: list[Callable[[Client], Any]] = [
    lambda client: client.insert("notes", "n1", {"text": "x"}),
    lambda client: client.update("notes", "n1", {"text": "x"}),
    lambda client: client.delete("notes", "n1"),
    lambda client: client.declare("notes", {"text": "string"}),
    lambda client: client.retry("0" * 64),
    lambda client: client.discard("0" * 64),
    lambda client: client.push(),
    lambda client: client.pull(),
    lambda client: client.sync(),
]


@pytest.mark.parametrize("operation", OTHERS)
def test_other_writes_and_syncs_on_the_thread_of_a_transaction_are_refused(
    client: Client, operation: Callable[[Client], Any]
) -> None:
    with client.transaction() as tx:
        tx.insert("todos", "t1", {"n": 1}).unwrap()
        _refused(operation(client))
        tx.insert("todos", "t2", {"n": 2}).unwrap()

    assert set(rows_of(client)) == {("todos", "t1"), ("todos", "t2")}
    check_sound(client)


def test_transactions_do_not_nest(client: Client) -> None:
    with client.transaction() as tx:
        tx.insert("todos", "t1", {"n": 1}).unwrap()
        with pytest.raises(TransactionOpen, match="a transaction is open"), client.transaction():
            pass
        tx.insert("todos", "t2", {"n": 2}).unwrap()

    assert len(client.pending().unwrap()) == 2


def test_an_edit_of_another_thread_waits_until_the_transaction_ended(client: Client) -> None:
    begun = threading.Event()

    def edit() -> object:
        begun.set()
        return client.insert("notes", "n1", {"text": "kept"})

    with ThreadPoolExecutor(1) as pool:
        with suppress(_Undone), client.transaction() as tx:
            tx.insert("todos", "t1", {"n": 1}).unwrap()
            waiting = pool.submit(edit)
            assert begun.wait(PATIENCE_S)
            assert not waiting.done()
            raise _Undone
        assert isinstance(waiting.result(10), Ok)

    assert rows_of(client) == {("notes", "n1"): {"text": "kept"}}


def test_only_the_transaction_itself_reads_its_uncommitted_edits(client: Client) -> None:
    client.insert("todos", "t1", {"n": 1}).unwrap()
    with client.transaction() as tx:
        tx.update("todos", "t1", {"n": 2}).unwrap()

        assert tx.get("todos", "t1") == Ok({"n": 2})
        assert tx.query("SELECT n FROM todos") == Ok([{"n": 2}])
        assert client.get("todos", "t1") == Ok({"n": 1})
        assert client.query("SELECT n FROM todos") == Ok([{"n": 1}])
        assert len(client.pending().unwrap()) == 1
        assert client.sql_name("todos") == Ok("todos")


def test_a_transaction_is_refused_after_its_block_and_on_another_thread(client: Client) -> None:
    with client.transaction() as tx, ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(tx.insert, "todos", "t1", {"n": 1})
        with pytest.raises(RuntimeError, match="on its thread"):
            elsewhere.result(10)
    with pytest.raises(RuntimeError, match="ends with its block"):
        tx.insert("todos", "t1", {"n": 1})

    assert rows_of(client) == {}


def test_a_query_of_a_transaction_cannot_write_or_end_it(client: Client) -> None:
    with client.transaction() as tx:
        tx.insert("todos", "t1", {"n": 1}).unwrap()
        for sql in ("COMMIT", "ROLLBACK", "DELETE FROM todos", "PRAGMA query_only = ON"):
            assert isinstance(tx.query(sql), Err)
        tx.update("todos", "t1", {"n": 2}).unwrap()

    assert rows_of(client) == {("todos", "t1"): {"n": 2}}


def test_closing_the_client_inside_a_transaction_raises_and_writes_nothing(
    world: World,
) -> None:
    client = world.client()

    def edit() -> None:
        with client.transaction() as tx:
            tx.insert("todos", "t1", {"n": 1}).unwrap()
            client.close()

    with pytest.raises(ValidationFailed, match="is closed"):
        edit()
    assert rows_of(world.client()) == {}


steps = st.lists(st.sampled_from(["begin", "commit", "undo", "inside", "plain"]), max_size=20)


@pytest.mark.law("K1")
@settings(max_examples=60)
@given(story=steps)
def test_exactly_the_edits_that_answered_ok_and_were_not_rolled_back_are_stored(
    tmp_path_factory: pytest.TempPathFactory, story: list[str]
) -> None:
    """Whatever tasks of one thread do between one another, in and out of a transaction."""
    from tests.client.support.world import World  # noqa: PLC0415 - a world for each example

    world = World(tmp_path_factory.mktemp("story"))
    client = world.client()
    kept: set[str] = set()
    inside: set[str] = set()
    block: Any = None
    tx: Any = None
    for number, step in enumerate(story):
        name = f"r{number}"
        if step == "begin" and block is None:
            block = client.transaction()
            tx, inside = block.__enter__(), set()
        elif step == "commit" and block is not None:
            block.__exit__(None, None, None)
            kept |= inside
            block = None
        elif step == "undo" and block is not None:
            with suppress(_Undone):
                block.__exit__(_Undone, _Undone(), None)
            block = None
        elif step == "inside" and block is not None:
            tx.insert("t", name).unwrap()
            inside.add(name)
        elif step == "plain" and isinstance(client.insert("t", name), Ok):
            kept.add(name)
    if block is not None:
        block.__exit__(None, None, None)
        kept |= inside

    assert {row for _, row in rows_of(client)} == kept
    check_sound(client)
    world.close()
