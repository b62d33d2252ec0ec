"""Salesforce: what its seconds, its links, its bulk queries and its limits do to a reader."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.connectors import Outside
from lakesync.connectors.registry import configured, connector_type, secret_names
from lakesync.errors import ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.salesforce.salesforce_api import SalesforceSettings
from lakesync.systems.salesforce.salesforce_connector import (
    SALESFORCE,
    Plan,
    changes_of,
    last_changed,
)
from tests.support.some import some
from tests.support.vendors.salesforce import CLIENT_ID, CLIENT_SECRET, FIELDS, SalesforceServer
from tests.support.vendors.server import Asked, Reply
from tests.support.vendors.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = {"Account": "accounts"}


@pytest.fixture
def org() -> Iterator[SalesforceServer]:
    with SalesforceServer() as running:
        yield running


def names(world: World) -> dict[str, Any]:
    return {row_id: row["Name"] for row_id, row in world.rows("Account").items()}


def expected(org: SalesforceServer) -> dict[str, Any]:
    rows = org.objects["Account"].rows.items()
    return {row_id: row["Name"] for row_id, row in rows if not row["IsDeleted"]}


def poll(org: SalesforceServer, world: World) -> int:
    org.clock += timedelta(seconds=5)
    return world.poll_to_the_end()


DEEDS = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=12)


@pytest.mark.law("N1", "N2", "N11")
@settings(max_examples=5)
@given(DEEDS, DEEDS, st.lists(st.integers(1, 20), max_size=4), st.sampled_from([0, 999]))
def test_rows_equal_those_of_the_organisation_wherever_polls_are_killed(
    first: list[tuple[bool, int]], second: list[tuple[bool, int]], kills: list[int], bulk: int
) -> None:
    with SalesforceServer() as org:
        org.page_max = 2
        world = World(org, TABLES, bulkRowsMin=bulk)
        for deeds in (first, second):
            for is_put, number in deeds:
                row_id = f"{number}"
                if is_put or row_id not in org.objects["Account"].rows:
                    org.put({row_id: f"{len(org.asked)}"})
                else:
                    org.delete(row_id)
            world.poll_and_die(kills)
            world.poll_to_the_end()
        poll(org, world)

        assert names(world) == expected(org)


@pytest.mark.law("N3", "N11")
def test_row_changed_twice_in_a_second_arrives_with_its_last_change(org: SalesforceServer) -> None:
    org.step = timedelta(milliseconds=90)
    world = World(org, {"Account": "a"})
    for number in range(12):
        org.change("1", Name=f"{number}")
        world.poll_to_the_end()
    poll(org, world)

    assert names(world) == {"1": "11"}


@pytest.mark.law("N11", "Y5")
def test_changes_since_a_time_are_read_again(org: SalesforceServer) -> None:
    assert SALESFORCE.begins_at is not None
    org.page_max = 2
    world = World(org, TABLES, overlapS=0)
    org.put({"1": "a", "2": "b"})
    at_us = int(org.clock.timestamp() * 1_000_000)
    org.put({"3": "c", "4": "d"})
    first = world.poll(iter([True, False]).__next__)
    assert first.status == "more"
    early = world.state.cursors["Account"]
    assert SALESFORCE.begins_at(None, "Account", early, at_us) == early, "all is still to come"
    poll(org, world)
    cursor = world.state.cursors["Account"]
    ahead_us = at_us + 86_400_000_000
    assert SALESFORCE.begins_at(None, "Account", cursor, ahead_us) == cursor
    reader = org.connector(**world.settings)
    moved = SALESFORCE.begins_at(None, "Account", cursor, at_us)
    page = reader.read("Account", moved, rows_max=9, poll_ms=world.time.wall_clock()).unwrap()
    reader.close()

    assert {one.row_id for one in page.changes} == {"3", "4"}


@pytest.mark.law("N4", "N11")
@pytest.mark.parametrize(
    ("name", "value"),
    [("SystemModstamp", None), ("SystemModstamp", "now"), ("IsActive", "maybe"), ("Size", "many")],
)
def test_malformed_record_does_not_stop_other_records(name: str, value: object) -> None:
    kind = {"IsActive": "boolean", "Size": "integer"}.get(name, "timestamp")
    fields = {"Id": "string", "SystemModstamp": "timestamp", name: kind}
    plan = Plan("Account", fields, has_deleted=False)
    good = {"Id": "1", "SystemModstamp": "2026-01-02T03:04:05.000+0000"}
    changes, unreadable = changes_of(plan, [good, {**good, "Id": "2", name: value}, good])

    assert [change.row_id for change in changes] == ["1", "1"]
    assert [each.row_id for each in unreadable] == ["2"]
    assert last_changed([good, {"Id": "2"}]) == good["SystemModstamp"]


def test_a_whole_number_of_sixty_four_bits_is_not_rounded() -> None:
    fields = {"Id": "string", "SystemModstamp": "timestamp", "N": "integer"}
    plan = Plan("Account", fields, has_deleted=False)
    for value in (9_007_199_254_740_993, "9007199254740993", "9007199254740993.0"):
        record = {"Id": "1", "SystemModstamp": "2026-01-02T03:04:05.000+0000", "N": value}
        (change,), _ = changes_of(plan, [record])
        assert change.columns is not None
        assert change.columns["N"] == 9_007_199_254_740_993


@pytest.mark.law("N11")
def test_a_transaction_that_commits_late_is_read_by_the_next_poll(org: SalesforceServer) -> None:
    org.put({"1": "a"})
    world = World(org, {"Account": "a"}, overlapS=120)
    late = org.change("2", Name="late")
    del org.objects["Account"].rows["2"]
    org.clock += timedelta(seconds=100)
    org.put({"3": "c"})
    poll(org, world)
    org.objects["Account"].rows["2"] = late
    poll(org, world)

    assert names(world) == expected(org)
    assert "2" in names(world)


@pytest.mark.law("N1", "N11")
@pytest.mark.parametrize("bulk", [0, 10_000], ids=["in bulk", "page by page"])
def test_first_load_and_later_polls_give_the_same_values(org: SalesforceServer, bulk: int) -> None:
    org.change(
        "1", Name='He said "a, b"\r\nthen left ü', AnnualRevenue=12.5, NumberOfEmployees=7,
        Active__c=True, Renewal__c="2026-12-01", BillingAddress={"city": "Vienna"},
    )  # fmt: skip
    org.put({f"{number}": "x" for number in range(2, 1_502)})
    org.delete("5")
    org.page_max = 700
    world = World(org, {"Account": "a"}, bulkRowsMin=bulk)
    waited_s = poll(org, world)
    first = world.deltas()
    assert names(world) == expected(org)
    assert waited_s == (20 if bulk == 0 else 0)
    assert bool(org.jobs) is (bulk == 0)
    row = world.rows("Account")["1"]
    assert (row["AnnualRevenue"], row["NumberOfEmployees"], row["Active__c"]) == (12.5, 7, True)
    assert (row["Renewal__c"], row["External__c"]) == ("2026-12-01", None)
    assert row["SystemModstamp"] == "2026-05-04T10:00:03.000Z"
    assert {"BillingAddress", "Logo__c"} & set(row) == set()
    org.objects["Account"].rows["1"]["SystemModstamp"] = org.clock - timedelta(seconds=60)
    poll(org, world)
    assert world.rows("Account")["1"] | {"SystemModstamp": ""} == row | {"SystemModstamp": ""}
    deletions = 1 if bulk == 0 else 0  # a bulk query leaves out what is deleted already
    assert world.deltas() == first + 1 + deletions


@pytest.mark.law("N11")
def test_a_bulk_query_that_fails_is_read_page_by_page(org: SalesforceServer) -> None:
    org.put({f"{number}": "x" for number in range(50)})
    org.job_states = ["InProgress", "Failed"]
    world = World(org, {"Account": "a"}, bulkRowsMin=0)
    poll(org, world)

    assert names(world) == expected(org)


@pytest.mark.law("N1", "N11")
def test_rows_changed_during_a_read_arrive_with_their_last_change(
    org: SalesforceServer,
) -> None:
    org.put({f"{number:03}": "first" for number in range(100)})
    org.page_max = 9
    world = World(org, {"Account": "a"})

    def meddle(asked: Asked) -> None:
        if "/query" in asked.path:
            org.put({f"{len(org.asked) % 100:03}": f"at {len(org.asked)}"})

    org.before_each = meddle
    poll(org, world)
    org.before_each = None
    poll(org, world)

    assert names(world) == expected(org)


@pytest.mark.law("N11")
def test_expired_query_locator_restarts_the_query(org: SalesforceServer) -> None:
    org.put({f"{number:03}": "x" for number in range(100)})
    org.page_max = 30
    world = World(org, {"Account": "a"})
    org.clock += timedelta(seconds=5)
    world.poll(iter([True, True, False]).__next__)
    org.locators.clear()
    poll(org, world)

    assert names(world) == expected(org)


@pytest.mark.law("N1", "N6", "N11")
@pytest.mark.parametrize(
    "fault",
    [
        Reply(503, b"<html>"),
        Reply(200, b'{"done": true, "records": [{"Id'),
        Reply(200, b'"Id","Name"\r\n"1","cut', {"sforce-locator": "null"}),
        Reply(
            200,
            b'"Id","Name"\r\n"1","cut"\r\n',
            {"sforce-locator": "null", "sforce-numberofrecords": "2"},
        ),
        Reply(403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED", "message": "TotalRequests Limit"}]),
    ],
    ids=["failing", "cut off", "cut off in bulk", "cut behind a row", "requests used up"],
)
@pytest.mark.parametrize("bulk", [0, 10_000], ids=["in bulk", "page by page"])
def test_repeated_faults_lose_nothing_and_duplicate_nothing(
    org: SalesforceServer, fault: Reply, bulk: int
) -> None:
    org.put({f"{number:03}": "x" for number in range(60)})
    org.page_max = 25
    world = World(org, {"Account": "a"}, bulkRowsMin=bulk)
    asked_for: list[str] = []

    def first_of_each(asked: Asked) -> Reply | None:
        page = f"{asked.path}{asked.query}"
        if "/results" not in page and ("/query/" not in page or "/jobs/" in page):
            return None
        asked_for.append(page)
        return fault if asked_for.count(page) == 1 else None

    org.faults = [first_of_each] * 200
    assert poll(org, world) >= 1

    assert names(world) == expected(org)
    assert world.deltas() == 60


@pytest.mark.law("N11")
def test_a_session_that_ends_midway_is_renewed(org: SalesforceServer) -> None:
    org.put({f"{number:03}": "x" for number in range(60)})
    org.page_max = 7

    def ends(asked: Asked) -> None:
        if "/query/" in asked.path and len(org.asked) % 3 == 0:
            org.sessions.clear()

    org.before_each = ends
    world = World(org, {"Account": "a"})
    poll(org, world)

    assert names(world) == expected(org)
    assert org.logins > 2


@pytest.mark.law("N4", "N11")
def test_revoked_client_secret_is_reported_and_loses_nothing(
    org: SalesforceServer,
) -> None:
    org.put({"1": "a"})
    world = World(org, {"Account": "a"})
    poll(org, world)
    org.is_secret_right = False
    org.put({"1": "b"})
    poll(org, world)
    assert names(world) == {"1": "a"}
    assert world.state.fault is not None
    assert "client id and secret" in world.state.fault.message
    assert CLIENT_SECRET not in world.state.fault.message
    org.is_secret_right = True
    poll(org, world)

    assert names(world) == {"1": "b"}


@pytest.mark.law("N6", "N11")
def test_requests_above_the_limit_share_are_not_used(org: SalesforceServer) -> None:
    org.put({f"{number:03}": "x" for number in range(60)})
    org.page_max, org.usage = 7, (795, 1_000)
    world = World(org, {"Account": "a"}, limitShare=80)
    org.clock += timedelta(seconds=5)
    stopped = world.poll()
    assert (stopped.status, stopped.wait_s) == ("wait", 3_600)
    assert org.usage[0] == 800
    org.usage = (1, 1_000)
    world.time.sleep_ms(3_600_000)
    poll(org, world)

    assert names(world) == expected(org)


def test_missing_objects_and_fields_are_reported_by_check(org: SalesforceServer) -> None:
    checked = org.connector().check()
    assert checked == Ok(f"{org.url} answers, and has Account, Contact.")
    discovered = org.connector().discover().unwrap()
    types = {column.name: column.type for column in discovered[0].columns}
    assert (types["AnnualRevenue"], types["Renewal__c"]) == ("number", "date")
    del org.objects["Contact"]
    for table, message in (
        ({"name": "Contact"}, "no object Contact"),
        ({"name": "Account", "fields": ["Name", "Wish__c"]}, "no field Wish__c"),
        ({"name": "Account", "fields": ["BillingAddress"]}, "no field BillingAddress"),
    ):
        refused = org.connector(tables=[table]).check()
        assert isinstance(refused, Err)
        assert message in refused.error.message
    org.objects["Account"].fields = {f"F{number}__c": "string" for number in range(900)}
    refused = org.connector(tables=[{"name": "Account"}]).check()
    assert isinstance(refused, Err)
    assert "tells no SystemModstamp" in refused.error.message


@pytest.mark.law("N8", "N9")
def test_invalid_settings_are_refused_and_secrets_are_named() -> None:
    good = {
        "instance": "https://acme.my.salesforce.com/", "clientId": CLIENT_ID,
        "clientSecret": CLIENT_SECRET,
    }  # fmt: skip
    sound = configured(connector_type("salesforce"), good)
    assert isinstance(sound, SalesforceSettings)
    assert list(SALESFORCE.tables(sound)) == ["Account", "Contact", "Lead", "Opportunity"]
    assert secret_names(SALESFORCE) == {"clientSecret"}
    for more in (
        {"instance": "acme.my.salesforce.com"},
        {"tables": [{"name": "Account WHERE Id != null"}]},
        {"tables": [{"name": "Account", "fields": ["Name FROM User"]}]},
        {"tables": [{"name": "Account"}, {"name": "account"}]},
        {"limitShare": 0},
    ):
        with pytest.raises(ValidationFailed) as refused:
            configured(SALESFORCE, good | more)
        assert CLIENT_SECRET not in refused.value.message
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        SALESFORCE.make(sound, None, Outside(("*.example.com",)))  # type: ignore[arg-type]


@pytest.mark.law("N1", "N11")
@pytest.mark.parametrize("bulk", [0, 999], ids=["bulk", "by pages"])
def test_field_added_later_is_filled_in_for_unchanged_rows(
    org: SalesforceServer, bulk: int
) -> None:
    org.put({f"{number}": "first" for number in range(1, 6)})
    world = World(org, TABLES, bulkRowsMin=bulk)
    poll(org, world)
    org.page_max = 2
    for row in org.objects["Account"].rows.values():
        row["Later__c"] = f"later {row['Id']}"
    poll(org, world)
    org.objects["Account"].fields = {**org.objects["Account"].fields, "Later__c": "string"}
    org.delete("3")
    world.poll_and_die(range(3, 30, 4))
    poll(org, world)
    rows = world.rows("Account")

    assert {row_id: row["Later__c"] for row_id, row in rows.items()} == {
        row_id: f"later {row_id}" for row_id in "1245"
    }
    before, asked = world.deltas(), len(org.asked)
    poll(org, world)
    assert world.deltas() == before
    queries = [each.query["q"] for each in org.asked[asked:] if "q" in each.query]
    for query in some(queries):
        assert "SystemModstamp >=" in query, "the table is read again once"
    org.objects["Account"].fields = FIELDS
    poll(org, world)
    assert world.deltas() == before, "a field that goes is no reason"
