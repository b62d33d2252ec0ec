"""Runs of the job that maintains the lake, as commands start them and wait for them."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli import lake_tables
from lakesync.cli.commands import lake
from lakesync.cli.erasure import erase_from_lake
from lakesync.errors import Unavailable
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator


ROWS = [("users", "ann"), ("users", "bob")]


class Busy(Exception):
    """As many runs are at work as may be."""


class Stack:
    """A stack whose job is asked, and answers with a report; busy for some tries."""

    def __init__(self, busy: int = 0) -> None:
        self.started: list[dict[str, str]] = []
        self.exceptions = SimpleNamespace(ConcurrentRunsExceededException=Busy)
        self.aws = SimpleNamespace(client=lambda _: self, output=lambda name: name)
        self.out = SimpleNamespace(progress=lambda _: nullcontext())
        self._busy = busy

    def start_job_run(self, *, JobName: str, Arguments: dict[str, str]) -> dict[str, str]:  # noqa: N803 - boto3's names
        assert JobName == "MaintainJobName"
        self._busy -= 1
        if self._busy >= 0:
            raise Busy
        self.started.append(Arguments)
        return {"JobRunId": "jr_1"}

    def get_job_run(self, **_: str) -> dict[str, Any]:
        return {"JobRun": {"JobRunState": "SUCCEEDED"}}

    def get_object(self, **_: str) -> dict[str, Any]:
        return {"Body": io.BytesIO(json.dumps({"tables": []}).encode())}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(lake_tables, "_POLL_S", 0.001)
        yield


@pytest.mark.law("E2", "E7")
def test_two_erasures_of_the_same_rows_use_separate_requests() -> None:
    stack: Any = Stack()
    objects = Objects()
    for _ in range(2):
        erase_from_lake(stack, objects, "g", ROWS, 1)
    keys = [given["--erase_key"] for given in stack.started]

    assert len({*keys}) == 2
    assert all(key.startswith("maintenance/erase-") for key in keys)
    assert [json.loads(objects.bodies[key]) for key in keys] == [{"rows": ["ann", "bob"]}] * 2
    assert [given["--only"] for given in stack.started] == ["g/users"] * 2
    assert not any("ann" in str(given) for given in stack.started), "everybody sees arguments"


def test_a_job_run_waits_while_the_concurrency_limit_is_reached() -> None:
    stack: Any = Stack(busy=3)

    assert lake_tables.run_job(stack, "g", 60) == {"tables": []}
    assert len(stack.started) == 1


def test_waiting_for_a_job_run_ends_at_the_timeout() -> None:
    stack: Any = Stack(busy=1_000_000)

    with pytest.raises(Unavailable, match="as many runs of MaintainJobName"):
        lake_tables.run_job(stack, "g", 0.01)


# --- rebuild --------------------------------------------------------------------------------------


WELL = {
    "table": "lake.ls_g.todos", "mark": "17", "rows": 1, "missing": 0, "changed": 0, "surplus": 0,
    "made": False, "written": False,
}  # fmt: skip


@pytest.mark.law("L23")
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rebuild_starts_the_job_and_is_audited_unless_dry(
    monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    stack: Any = Stack()
    stack.connection = SimpleNamespace(gateway="g", own_gateway="g")
    recorded = []

    @contextmanager
    def audited(_: object, operation: str, target: str, shows: object) -> Iterator[None]:
        assert callable(shows)
        recorded.append((operation, target))
        yield

    monkeypatch.setattr(lake, "audited", audited)
    monkeypatch.setattr(lake_tables, "_POLL_S", 0.001)
    lake.rebuild_in_lake(stack, "todos", 1, dry_run=dry_run)

    [given] = stack.started
    assert (given["--only"], given["--rebuild"]) == ("g/todos", "dry" if dry_run else "yes")
    assert recorded == ([] if dry_run else [("rebuildLake", "todos")])


@pytest.mark.parametrize(
    ("fields", "dry_run", "said"),
    [
        ({}, False, ["1 row: all equal to their changes"]),
        (
            {"rows": 6, "missing": 2, "surplus": 1},
            True,
            [
                "6 rows: 2 missing, 1 without any change",
                "nothing was changed; without --dry-run they are rebuilt",
            ],
        ),
        (
            {"rows": 6, "missing": 6, "made": True, "written": True},
            False,
            [
                "lake.ls_g.todos did not exist",
                "6 rows: 6 missing",
                "they were rebuilt, up to 17",
            ],
        ),
    ],
    ids=["well", "tried", "made again"],
)
def test_the_rebuild_report_states_what_was_wrong_and_what_was_done(
    fields: dict[str, Any], said: list[str], *, dry_run: bool
) -> None:
    assert list(lake.report_lines(WELL | fields, dry_run=dry_run)) == said
