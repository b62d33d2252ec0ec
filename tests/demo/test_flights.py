"""The demo's source data: what the clients write comes to what the frame says."""

from __future__ import annotations

import pytest

from tools.demo.evidence import compare
from tools.demo.flights import (
    AIRLINE,
    AIRPORT,
    AIRPORT_MOVED,
    EVERYWHERE,
    TYPES,
    Rows,
    RuleClaims,
    Week,
    load_week,
    seen,
)


@pytest.fixture(scope="module")
def week() -> Week:
    return load_week(2)


def test_the_flight_data_has_unique_row_ids_and_known_cancellations(week: Week) -> None:
    assert len(week.timetable()) == len(week.frame) == 1_785
    assert week.days == ["2013-01-01", "2013-01-02"]
    assert [len(week.cancelled(day)) for day in week.days] == [4, 8]
    assert week.remarked_by_both(AIRLINE, AIRPORT) == 119


def test_the_published_table_equals_the_rows_of_the_feed(week: Week) -> None:
    assert compare("feed", week.timetable(), week.published()).right


@pytest.mark.parametrize("later", ["airline", "airport"])
@pytest.mark.parametrize("both_claims", [(AIRLINE, AIRPORT), (EVERYWHERE, EVERYWHERE)])
def test_the_final_table_equals_all_edits_applied_in_order(
    week: Week, later: str, both_claims: tuple[RuleClaims, RuleClaims]
) -> None:
    rows: Rows = week.timetable()
    airline, airport = (week.of(claims) for claims in both_claims)
    for day in week.days:
        edits = [airline.departures(day), airport.arrivals(day)]
        for written in edits if later == "airport" else reversed(edits):
            for row_id, columns in written.items():
                rows[row_id] = rows[row_id] | columns
        for row_id in airline.cancelled(day):
            del rows[row_id]
    final = week.final(*both_claims, week.days if later == "airline" else ())
    assert compare("edits", rows, final).sentence == "equal, column for column"
    # The order matters, or the remarks by both would prove nothing.
    other = week.final(*both_claims, () if later == "airline" else week.days)
    assert compare("edits", rows, other).differing.keys() == {"remark"}


def test_the_table_of_the_second_act_equals_its_edits_applied(week: Week) -> None:
    rows: Rows = week.timetable()
    for day in week.days:
        for row_id, columns in week.departures(day).items():
            rows[row_id] |= {name: value for name, value in columns.items() if name != "remark"}
        for row_id in week.cancelled(day):
            del rows[row_id]
    remarks = dict.fromkeys(sorted(rows)[::3], "gate 1")
    for row_id, remark in remarks.items():
        rows[row_id] |= {"remark": remark}

    assert compare("edits", rows, week.departed(remarks)).right
    assert not compare("edits", rows, week.departed({})).right


def test_a_client_sees_the_flights_of_its_carriers_and_origins(week: Week) -> None:
    published = week.published()
    for claims, where in (
        (AIRLINE, published["carrier"].isin(["UA", "EV"])),
        (AIRPORT, published["origin"] == "EWR"),
        (AIRPORT_MOVED, published["origin"] == "JFK"),
        (EVERYWHERE, published["carrier"] != ""),
        ({}, published["carrier"] == ""),
    ):
        assert seen(published, claims).equals(published[where])
        assert sorted(week.of(claims).timetable()) == sorted(published[where].index)


def test_a_comparison_counts_missing_surplus_and_differing_rows(week: Week) -> None:
    rows = week.timetable()
    first, second = sorted(rows)[:2]
    rows["invented"] = rows.pop(first)
    rows[second] = rows[second] | {"distance": -1}
    verdict = compare("holder", rows, week.published())
    assert verdict.sentence == "1 missing; 1 too many; distance: 1 differ"
    assert not verdict.right


def test_every_column_of_the_schema_is_written(week: Week) -> None:
    day = week.days[0]
    written = [week.timetable(), week.departures(day), week.arrivals(day)]
    assert {name for rows in written for row in rows.values() for name in row} == set(TYPES)
