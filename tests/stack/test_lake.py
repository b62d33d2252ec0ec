"""The lake after everything that can go wrong on the way to it, compared with a naive oracle.

A run of the Glue job takes half a minute, so all of it happens once, to several tenants at a time,
in `history`; each test looks at one consequence.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op
from lakesync.core.names import LIVE_SUFFIX, ROWS_SUFFIX, lake_database
from tests.support.athena import read_document
from tests.support.deployed import Tenant, executed
from tests.support.killed_flush import STEPS, TABLES, Killed, bucket, claims, fill, flush_here

if TYPE_CHECKING:
    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Glue
    from tools.local_stack.stack import Stack

CLIENTS = ("c1", "c2", "c3")
KILLS_TRIED_MAX = 8
"""Runs that are killed, until one was not done before."""


@dataclass
class History:
    """What happened, and what was seen on the way."""

    killed: Tenant
    """Its flush was killed before each of its steps in turn."""
    mixed: Tenant
    """Three clients insert, update and delete the same rows."""
    disordered: Tenant
    """The first of its three batches came last."""
    unreadable: Tenant
    """Of its claims nothing can be read."""
    together: list[dict[str, Any]] = field(default_factory=list)
    """The two runs that were started at once."""
    behind_the_gap: int = -1
    """Batches of `disordered` that waited while the first was missing."""
    stopped: dict[str, Any] = field(default_factory=dict)
    """The run that was killed midway."""
    after_the_stop: int = -1
    """Batches of `mixed` that waited after that."""
    sweep: dict[str, Any] = field(default_factory=dict)
    """The sweep that finished it."""


@pytest.fixture(scope="module")
def history(stack: Stack, aws: Aws, glue: Glue, by_hand: None, credentials: None) -> History:
    seen = History(Tenant(stack), Tenant(stack), Tenant(stack), Tenant(stack))
    chance = random.Random(7)
    delivered = kill_flushes(seen.killed)
    edit(seen.mixed, chance, count=120)
    seen.mixed.flush()
    first, *_ = [flushed(seen.disordered, turn) for turn in range(3)]
    withheld = take(seen.disordered, first)

    seen.together = run_two_at_once(glue)
    seen.behind_the_gap = seen.disordered.waiting()

    put_back(seen.unreadable, dict.fromkeys(flushed(seen.unreadable, 0), b"{}"))
    put_back(seen.disordered, withheld)
    put_back(seen.killed, delivered)
    seen.stopped = kill_midway(glue, seen.mixed, chance)
    seen.after_the_stop = seen.mixed.waiting()
    put_back(seen.killed, delivered)
    seen.sweep = sweep(aws)
    return seen


# --- what happens ---------------------------------------------------------------------------------


def kill_flushes(tenant: Tenant) -> dict[str, bytes]:
    """Push and flush on and on, each time killed one step later; then let one finish.

    Returns:
        Every claim that came of it, by its key.
    """
    for turn in range(len(STEPS)):
        fill(tenant, first=10 * turn)
        with pytest.raises(Killed):
            flush_here(tenant, turn)
    tenant.flush()
    objects = bucket(tenant)
    keys = objects.list_objects(f"claims/{tenant.gateway}/")
    return {key: objects.get_object(key) for key in keys}


def edit(tenant: Tenant, chance: random.Random, count: int) -> None:
    """Let three clients change the same forty rows, in turns of a few deltas."""
    for turn in range(count // 6):
        client = chance.choice(CLIENTS)
        deltas = []
        for _ in range(6):
            row = f"r{chance.randrange(40)}"
            op = chance.choices((Op.INSERT, Op.UPDATE, Op.DELETE), (3, 5, 2))[0]
            names = [] if op is Op.DELETE else chance.sample("abcd", chance.randint(1, 3))
            deltas.append(tenant.make(op, row, dict.fromkeys(names, turn), client=client))
        chance.shuffle(deltas)
        tenant.push(deltas)


def flushed(tenant: Tenant, turn: int) -> list[str]:
    """Push and flush once more; returns the keys of all claims that wait then."""
    tenant.push([tenant.make(Op.UPDATE, f"r{n}", {"turn": turn}) for n in range(20)])
    tenant.flush()
    return bucket(tenant).list_objects(f"claims/{tenant.gateway}/")


def take(tenant: Tenant, keys: list[str]) -> dict[str, bytes]:
    """Hold claims back, as if they had not come yet."""
    objects = bucket(tenant)
    bodies = {key: objects.get_object(key) for key in keys}
    for key in keys:
        objects.delete_object(key)
    return bodies


def put_back(tenant: Tenant, bodies: dict[str, bytes]) -> None:
    """Let claims come, for the first time or again."""
    objects = bucket(tenant)
    for key, body in bodies.items():
        objects.put_object(key, body, "application/json")


def run_two_at_once(glue: Glue) -> list[dict[str, Any]]:
    """Start two runs together, which the job itself does not allow."""
    glue.allow_at_once(2)
    try:
        return [glue.ended(run_id) for run_id in (glue.start(), glue.start())]
    finally:
        glue.allow_at_once(1)


def kill_midway(glue: Glue, tenant: Tenant, chance: random.Random) -> dict[str, Any]:
    """Kill a run once it has written the first file of the tenant's data; returns how it ended.

    One that is done before the kill arrives is followed by another, with as much to do.
    """
    stopped: dict[str, Any] = {}
    for _ in range(KILLS_TRIED_MAX):
        edit(tenant, chance, count=120)
        tenant.flush()
        stopped = kill_one(glue, tenant)
        if stopped["JobRunState"] == "STOPPED" and tenant.waiting():
            break
    return stopped


def kill_one(glue: Glue, tenant: Tenant) -> dict[str, Any]:
    """Start a run, and kill it when it has written a file."""
    before = lake_files(tenant)
    run_id = glue.start()
    while lake_files(tenant) == before:
        run = glue.client.get_job_run(JobName=glue.job, RunId=run_id)["JobRun"]
        assert run["JobRunState"] in {"STARTING", "RUNNING"}, run
        time.sleep(0.05)
    glue.client.batch_stop_job_run(JobName=glue.job, JobRunIds=[run_id])
    return glue.ended(run_id)


def lake_files(tenant: Tenant) -> set[str]:
    """Return the data files of all tables, those that no snapshot names too."""
    keys = bucket(tenant).list_objects("")
    return {key for key in keys if key.endswith(".parquet") and not key.startswith("staging/")}


def sweep(aws: Aws) -> dict[str, Any]:
    """Do what the schedule does; returns the execution at its end."""
    return executed(aws, "SweepStateMachineArn")


# --- what comes of it -----------------------------------------------------------------------------


def assert_right(tenant: Tenant, table: str = "todos") -> None:
    """The rows are what the oracle says; the history has each effective delta exactly once."""
    assert tenant.lake_rows(table) == tenant.expected(table)
    logged = sorted(delta.delta_id for delta in tenant.pull("reader") if delta.table == table)
    changes = tenant.table(f"{table}__changes")
    assert sorted(changes.column("_delta_id").to_pylist()) == logged


def test_two_concurrent_runs_succeed_and_apply_each_batch_once(history: History) -> None:
    assert [run["JobRunState"] for run in history.together] == ["SUCCEEDED", "SUCCEEDED"]
    for table in TABLES:
        assert_right(history.killed, table)


def test_batches_after_a_gap_wait_and_are_applied_once_it_is_filled(history: History) -> None:
    assert history.behind_the_gap == 2
    assert history.disordered.waiting() == 0
    assert_right(history.disordered)


def test_run_killed_midway_is_finished_by_the_sweep(history: History) -> None:
    assert history.stopped["JobRunState"] == "STOPPED"
    assert history.after_the_stop > 0
    assert history.sweep["status"] == "SUCCEEDED"
    assert history.mixed.waiting() == 0
    assert_right(history.mixed)


def test_batches_that_are_delivered_three_times_are_applied_once(history: History) -> None:
    assert claims(history.killed) == []
    for table in TABLES:
        assert_right(history.killed, table)
        assert len(history.killed.lake_rows(table)) == 10 * len(STEPS)


def test_unreadable_claim_is_set_aside_with_its_reason(history: History) -> None:
    objects = bucket(history.unreadable)
    assert claims(history.unreadable) == []
    [key] = objects.list_objects(f"claims-failed/{history.unreadable.gateway}/")
    assert objects.get_object(key) == b"{}"
    aws = history.unreadable.aws
    put = aws.client("s3").head_object(Bucket=aws.output("LakeBucket"), Key=key)
    assert "claim" in put["Metadata"]["reason"]


def test_glue_catalogue_has_the_athena_views_of_each_table(history: History, aws: Aws) -> None:
    database = lake_database(aws.output("DatabasePrefix"), history.killed.gateway)
    for table in TABLES:
        for suffix in (ROWS_SUFFIX, LIVE_SUFFIX):
            place = {"DatabaseName": database, "Name": table + suffix}
            view = aws.client("glue").get_table(**place)["Table"]
            document = read_document(view["ViewOriginalText"])
            assert f'"{database}"."{table}"' in document["originalSql"]
            shown = [column["name"] for column in document["columns"]]
            columns = history.killed.table(table).column_names
            assert shown == ["_id", *(name for name in columns if name[:1] != "_")]
