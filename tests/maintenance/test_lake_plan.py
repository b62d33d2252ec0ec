"""What maintenance of a lake table pays for, by its figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.maintenance.lake_plan import (
    MANIFESTS_MAX,
    ORPHANS_EVERY_DAYS,
    SMALL_FILES_MAX,
    Step,
    TableFigures,
    is_orphans_day,
    steps_for,
)

DAY_MS = 86_400_000
TIDY = TableFigures(files=9, delete_files=9, rows=1_000, dead_rows=200, manifests=MANIFESTS_MAX)


def steps(figures: TableFigures) -> set[Step]:
    """Return the steps of a day that is not the table's for orphans."""
    day = next(day for day in range(ORPHANS_EVERY_DAYS) if not is_orphans_day("t", day * DAY_MS))
    return set(steps_for(figures, "t", day * DAY_MS))


@pytest.mark.law("L17")
def test_no_maintenance_step_is_planned_at_or_below_its_threshold() -> None:
    assert steps(TIDY._replace(small_files=SMALL_FILES_MAX, snapshots=700)) == set()
    assert steps(TableFigures()) == set()


@pytest.mark.law("L17")
@pytest.mark.parametrize(
    ("figures", "step"),
    [
        (TIDY._replace(small_files=SMALL_FILES_MAX + 1), Step.FILES),
        (TIDY._replace(dead_rows=201), Step.FILES),
        (TIDY._replace(delete_files=10), Step.DELETES),
        (TIDY._replace(manifests=MANIFESTS_MAX + 1), Step.MANIFESTS),
        (TIDY._replace(old_snapshots=1), Step.SNAPSHOTS),
    ],
)
def test_maintenance_step_is_planned_above_its_threshold(figures: TableFigures, step: Step) -> None:
    assert steps(figures) == {step}


@pytest.mark.law("L17")
@given(table=st.text(max_size=40), first=st.integers(0, 40_000))
def test_orphans_of_each_table_are_removed_on_one_day_a_week(table: str, first: int) -> None:
    days = range(first, first + ORPHANS_EVERY_DAYS)
    assert sum(is_orphans_day(table, day * DAY_MS + 7) for day in days) == 1
