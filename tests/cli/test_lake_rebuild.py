"""`lakesync lake rebuild`: what it asks of the job, and what it says of the report."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli import lake_tables
from lakesync.cli.commands import lake
from tests.cli.test_lake_job import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

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
