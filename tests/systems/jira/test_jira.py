"""Jira Cloud: what its search, its clock and its moods do to a reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.connectors import Outside
from lakesync.connectors.registry import configured, connector_type, secret_names
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.jira.jira_api import JiraSettings
from lakesync.systems.jira.jira_connector import JIRA
from tests.support.vendors.jira import EMAIL, TOKEN, JiraServer
from tests.support.vendors.server import Asked, Reply
from tests.support.vendors.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLES = {"issues": "jira_issues", "comments": "jira_comments"}


@pytest.fixture
def site() -> Iterator[JiraServer]:
    with JiraServer() as running:
        yield running


def summaries(world: World) -> dict[str, Any]:
    return {row_id: row["summary"] for row_id, row in world.rows("issues").items()}


def expected(site: JiraServer) -> dict[str, Any]:
    return {each.id: each.fields["summary"] for each in site.issues.values()}


def assert_same(site: JiraServer, world: World) -> None:
    comments = {
        comment["id"]: (issue.id, comment["body"])
        for issue in site.issues.values()
        for comment in issue.comments
    }
    assert summaries(world) == expected(site)
    assert {
        row_id: (row["issue_id"], row["body"]) for row_id, row in world.rows("comments").items()
    } == comments


DEEDS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "comment", "uncomment"]), st.integers(1, 6)),
    min_size=1,
    max_size=12,
)


def do(site: JiraServer, deed: str, number: int) -> None:
    row_id = f"{number}"
    if deed == "put" or row_id not in site.issues:
        site.put({row_id: f"{deed} {len(site.asked)}"})
    elif deed == "delete":
        site.delete(row_id)
    elif deed == "comment" or not site.issues[row_id].comments:
        site.comment(row_id, f"{number}")
    else:
        site.delete_comment(row_id, site.issues[row_id].comments[0]["id"])


@pytest.mark.law("N1", "N2", "N10")
@settings(max_examples=8)
@given(DEEDS, DEEDS, st.lists(st.integers(1, 40), max_size=4))
def test_rows_equal_those_of_the_site_wherever_polls_are_killed(
    first: list[tuple[str, int]], second: list[tuple[str, int]], kills: list[int]
) -> None:
    with JiraServer() as site:
        world = World(site, TABLES)
        for deeds in (first, second):
            for deed in deeds:
                do(site, *deed)
            world.poll_and_die(kills)
            world.poll_to_the_end()
        world.poll_to_the_end()

        assert_same(site, world)


@pytest.mark.law("N10")
@pytest.mark.parametrize("zone", ["Europe/Vienna", "America/St_Johns", "Pacific/Auckland"])
@pytest.mark.parametrize("begins", [datetime(2026, 3, 29, 0, 20), datetime(2026, 10, 25, 0, 20)])  # noqa: DTZ001
def test_minute_resolution_and_time_zones_lose_no_change(
    site: JiraServer, zone: str, begins: datetime
) -> None:
    site.zone, site.clock = zone, begins.replace(tzinfo=UTC)
    site.step = timedelta(seconds=431)
    world = World(site, {"issues": "i"}, overlapS=0, reconcileMinutes=1_000)
    world.poll_to_the_end()
    for number in range(1, 16):
        site.put({f"{number}": "new", "1": f"changed {number}"})
        world.poll_to_the_end()

        assert summaries(world) == expected(site)
    changed = world.deltas()
    world.poll_to_the_end()
    assert world.deltas() == changed, "at rest nothing is new"


@pytest.mark.law("N10")
def test_changes_that_the_search_shows_late_are_read_within_the_overlap(site: JiraServer) -> None:
    site.lag_s, site.step = 40, timedelta(seconds=8)
    world = World(site, {"issues": "i"}, overlapS=60, reconcileMinutes=1_000)
    for number in range(12):
        site.put({f"{number}": "new", f"{number // 3}": f"changed {number}"})
        world.poll_to_the_end()
    site.clock += timedelta(seconds=50)
    world.poll_to_the_end()

    assert summaries(world) == expected(site)


@pytest.mark.law("N1", "N10")
def test_issues_changed_during_a_read_arrive_with_their_last_change(site: JiraServer) -> None:
    site.put({f"{number}": "first" for number in range(250)})
    world = World(site, {"issues": "i"}, reconcileMinutes=1_000)
    world.poll_to_the_end()
    site.put({f"{number}": "second" for number in range(250)})

    def meddle(asked: Asked) -> None:
        if asked.path.endswith("/jql"):
            number = len(site.asked)
            site.put({f"{number % 250}": f"third {number}", f"new {number}"[4:]: "new"})

    site.before_each = meddle
    world.poll_to_the_end()
    site.before_each = None
    world.poll_to_the_end()

    assert summaries(world) == expected(site)


@pytest.mark.law("N1", "N6", "N10")
@pytest.mark.parametrize(
    ("fault", "wait_s"),
    [
        (Reply(429, {"message": "slow down"}, {"retry-after": "17"}), 17),
        (Reply(503, b"<html>"), 15),
        (Reply(200, b'{"issues": [{"id": "1"'), 15),
        (Reply(200, {"issues": [{"id": "1"}]}), 1),
    ],
    ids=["asked for patience", "failing", "cut off", "not as its API says"],
)
def test_repeated_faults_lose_nothing_and_duplicate_nothing(
    site: JiraServer, fault: Reply, wait_s: int
) -> None:
    site.put({f"{number}": "first" for number in range(150)})
    calm = World(site, {"issues": "i"}, reconcileMinutes=1_000)
    calm.poll_to_the_end()
    world = World(site, {"issues": "i"}, reconcileMinutes=1_000)
    searched: list[Asked] = []

    def two_of_three(asked: Asked) -> Reply | None:
        searched.extend([asked] if asked.path.endswith("/jql") else [])
        return fault if len(searched) % 3 and searched[-1] is asked else None

    site.faults = [two_of_three] * 50
    waited_s = world.poll_to_the_end()

    each_s = wait_s + max(wait_s, 2)  # the second in a row is left alone for longer
    assert waited_s == each_s * (len(searched) // 3) >= 2 * each_s
    assert summaries(world) == expected(site)
    assert world.deltas() == calm.deltas()


@pytest.mark.law("N10")
def test_exhausted_quota_is_waited_for_before_the_next_request(site: JiraServer) -> None:
    site.put({f"{number}": "first" for number in range(250)})
    world = World(site, {"issues": "i"}, reconcileMinutes=1_000)

    def last_one(asked: Asked) -> Reply:
        reset = site.clock + timedelta(minutes=2)
        headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{reset:%Y-%m-%dT%H:%MZ}"}
        return site.answer(asked)._replace(headers=headers)

    site.faults.append(last_one)
    assert 60 <= world.poll_to_the_end() <= 120

    assert summaries(world) == expected(site)


@pytest.mark.law("N10")
def test_expired_page_token_restarts_the_search(site: JiraServer) -> None:
    site.put({f"{number}": "first" for number in range(250)})
    world = World(site, {"issues": "i"}, reconcileMinutes=1_000)
    world.poll(iter([True, False]).__next__)
    site.faults.append(Reply(400, {"errorMessages": ["The nextPageToken is invalid or expired."]}))
    world.poll_to_the_end()

    assert summaries(world) == expected(site)
    assert site.faults == []


@pytest.mark.law("N4", "N10")
def test_credentials_revoked_midway_are_reported_and_delete_nothing(site: JiraServer) -> None:
    site.put({f"{number}": "first" for number in range(250)})
    world = World(site, TABLES)
    world.poll_to_the_end()
    site.put({"7": "second"})
    world.poll(iter([True, False]).__next__)
    site.is_login_right = False
    world.poll_to_the_end()
    world.poll_to_the_end()
    assert len(world.rows("issues")) == 250
    assert world.state.fault is not None
    assert "credentials" in world.state.fault.message
    site.is_login_right = True
    world.poll_to_the_end()

    assert_same(site, world)
    assert world.state.fault is None


@pytest.mark.law("N10")
def test_deleted_issue_and_its_comments_are_found_at_the_reconcile_interval(
    site: JiraServer,
) -> None:
    world = World(site, TABLES, reconcileMinutes=60)
    site.put({f"{number}": "first" for number in range(5)})
    comment = [site.comment(f"{number}", "hello") for number in range(5)]
    world.poll_to_the_end()
    site.delete("1")
    site.delete_comment("2", comment[2])
    world.poll_to_the_end()
    assert len(world.rows("issues")) == 5
    assert comment[2] not in world.rows("comments"), "its issue was changed by it"
    assert comment[1] in world.rows("comments")
    world.time.sleep_ms(3_600_000)
    world.poll_to_the_end()

    assert_same(site, world)


@pytest.mark.law("N10")
def test_imported_issue_with_an_old_change_time_is_read(site: JiraServer) -> None:
    world = World(site, TABLES)
    site.put({"1": "first"})
    world.poll_to_the_end()
    imported = site.change("2", summary="imported")
    site.comment("2", "old")
    imported.updated = imported.history[-1][0] - timedelta(days=900)
    imported.history = [(site.clock, imported.updated, imported.fields)]
    world.poll_to_the_end()

    assert_same(site, world)


@pytest.mark.law("N3", "N10")
def test_issue_dated_in_the_future_hides_no_other_issue(site: JiraServer) -> None:
    world = World(site, {"issues": "i"}, reconcileMinutes=1_000)
    ahead = site.change("1", summary="from the future")
    ahead.updated += timedelta(days=2_000)
    ahead.history = [(site.clock, ahead.updated, ahead.fields)]
    world.poll_to_the_end()
    site.put({"2": "now"})
    world.poll_to_the_end()

    assert summaries(world) == {"1": "from the future", "2": "now"}


@pytest.mark.law("N4", "N10")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda issue: issue["fields"].update(updated="yesterday"),
        lambda issue: issue["fields"].pop("updated"),
        lambda issue: issue["fields"].update(created=["now"]),
        lambda issue: issue.pop("key"),
        lambda issue: issue.update(fields=None),
    ],
    ids=["no time", "without a time", "a list", "without a key", "without fields"],
)
def test_malformed_issue_does_not_stop_other_issues(
    spoil: Callable[[dict[str, Any]], Any],
) -> None:
    class Spoilt(JiraServer):
        def answer(self, asked: Asked) -> Reply:
            reply = super().answer(asked)
            for issue in reply.body.get("issues", []) if isinstance(reply.body, dict) else []:
                if issue["id"] == "2" and "fields" in issue:
                    spoil(issue)
            return reply

    with Spoilt() as site:
        world = World(site, TABLES, reconcileMinutes=1)
        for text in ("first", "second"):
            site.put({"1": text, "2": text, "3": text})
            site.comment("3", text)
            world.poll_to_the_end()
            world.time.sleep_ms(120_000)
            assert {row_id: summaries(world)[row_id] for row_id in "13"} == {"1": text, "3": text}
        assert len(world.rows("comments")) == 2
        assert world.state.fault is None
        assert world.state.dead_letters == 1


@pytest.mark.law("N10")
def test_all_comments_of_an_issue_with_many_are_read_and_compared(site: JiraServer) -> None:
    site.put({"1": "busy", "2": "quiet"})
    ids = [site.comment("1", f"{number}") for number in range(1_234)]
    site.comment("2", "alone")
    world = World(site, TABLES, reconcileMinutes=1_000)
    for _ in range(40):
        world.poll(iter([True, False]).__next__)
    world.poll_to_the_end()
    assert_same(site, world)
    site.delete_comment("1", ids[3])
    site.delete_comment("1", ids[1_100])
    site.edit_comment("1", ids[500], "other")
    world.poll_to_the_end()

    assert_same(site, world)


@pytest.mark.law("N10", "Y5")
def test_changes_since_a_time_are_read_again(site: JiraServer) -> None:
    assert JIRA.begins_at is not None
    site.step = timedelta(minutes=10)
    tables = {"issues": "i", "comments": "c", "worklogs": "w"}
    world = World(site, tables, overlapS=0, reconcileMinutes=10_000)
    for number in range(1, 7):
        site.put({f"{number}": "new"})
        site.comment(f"{number}", "said")
        site.log_work(f"{number}", number)
    site.clock += timedelta(minutes=2)
    world.poll_to_the_end()
    whole = {name: world.rows(name) for name in tables}
    halfway_us = int(site.issues["4"].updated.timestamp() * 1_000_000)
    cursors, reader = world.state.cursors, site.connector(**world.settings)

    def again(at_us: int) -> dict[str, set[str]]:
        """Return the rows that come again."""
        assert JIRA.begins_at is not None
        came: dict[str, set[str]] = {}
        for table, cursor in cursors.items():
            assert JIRA.begins_at(world.settings, table, "", at_us) == ""
            moved = JIRA.begins_at(world.settings, table, cursor, at_us)
            came[table], more = set(), True
            while more:
                page = reader.read(table, moved, rows_max=2, poll_ms=world.time.wall_clock())
                came[table] |= {one.row_id for one in page.unwrap().changes}
                moved, more = page.unwrap().cursor, page.unwrap().has_more
        return came

    assert again(0) == {name: set(rows) for name, rows in whole.items()}
    late = again(halfway_us)
    assert late["issues"] == {"4", "5", "6"}
    assert 3 <= len(late["comments"]) < 6
    assert 3 <= len(late["worklogs"]) < 6
    ahead = int((site.clock + timedelta(days=1)).timestamp() * 1_000_000)
    for table, cursor in cursors.items():
        assert JIRA.begins_at(world.settings, table, cursor, ahead) == cursor
    with pytest.raises(ValidationFailed, match="listed whole"):
        JIRA.begins_at(world.settings, "users", "", halfway_us)
    reader.close()


@pytest.mark.law("N10")
def test_worklogs_follow_the_updated_and_deleted_lists_of_jira(site: JiraServer) -> None:
    site.change("1", summary="a")
    site.change("2", project="OTHER", summary="b")
    ids = [site.log_work("1" if number % 2 else "2", number) for number in range(1_500)]
    site.clock += timedelta(minutes=2)
    world = World(site, {"worklogs": "w"}, projects=["ACME"])
    world.poll_to_the_end()
    assert len(world.rows("worklogs")) == 750, "those of other projects stay there"
    site.log_work("1", 77, ids[1])
    site.delete_worklog(ids[3])
    site.clock += timedelta(minutes=2)
    world.poll_to_the_end()
    rows = world.rows("worklogs")

    assert (rows[ids[1]]["time_spent_s"], ids[3] in rows, len(rows)) == (77, False, 749)
    before = world.deltas()
    world.poll_to_the_end()
    assert world.deltas() == before


def test_projects_and_users_are_compared_with_what_was_listed_before(site: JiraServer) -> None:
    site.projects = {f"{n}": {"id": f"{n}", "key": f"P{n:03}", "name": "x"} for n in range(120)}
    site.users = {f"u{n}": {"accountId": f"u{n}", "active": True} for n in range(1_100)}
    world = World(site, {"projects": "p", "users": "u"})
    world.poll_to_the_end()
    assert (len(world.rows("projects")), len(world.rows("users"))) == (120, 1_100)
    before = world.deltas()
    world.poll_to_the_end()
    assert world.deltas() == before
    site.projects["7"]["name"] = "y"
    site.users["u8"] = {"accountId": "u8", "active": False}
    for each in [f"u{n}" for n in range(500, 560)]:
        del site.users[each]
    del site.projects["119"]
    removed = iter(["0"])

    def shift(asked: Asked) -> None:
        if asked.query.get("startAt") == "50":  # later projects move up while they are listed
            for each in removed:
                del site.projects[each]

    site.before_each = shift
    world.poll_to_the_end()

    assert world.rows("projects")["7"]["name"] == "y"
    assert world.rows("users")["u8"]["active"] is False
    assert set(world.rows("projects")) == set(site.projects) | {"0"}, "0 was there when it was read"
    assert set(world.rows("users")) == set(site.users)
    world.poll_to_the_end()
    assert set(world.rows("projects")) == set(site.projects)


def test_custom_fields_are_columns_by_their_names(site: JiraServer) -> None:
    wanted = ["Story Points", "Team", "customfield_10022"]
    site.change(
        "1", summary="a", customfield_10016=3.5, customfield_10020={"id": "9", "value": "Blue"},
        customfield_10021=[{"value": "Red"}], status={"name": "Open"},
        customfield_10022={"type": "doc"}, duedate="2026-04-01", assignee={"accountId": "acc-1"},
    )  # fmt: skip
    world = World(site, {"issues": "i"}, customFields=wanted)
    world.poll_to_the_end()
    row = world.rows("issues")["1"]

    assert row["story_points"] == 3.5
    assert (row["team_10020"], row["team_10021"]) == ("Blue", ["Red"])
    assert (row["status"], row["status_10022"]) == ("Open", {"type": "doc"})
    assert (row["due"], row["assignee"], row["key"]) == ("2026-04-01", "acc-1", "ACME-1")
    assert row["updated"] == "2026-03-29T00:40:00.007Z"
    discovered = site.connector(customFields=wanted).discover().unwrap()
    types = {column.name: column.type for column in discovered[0].columns}
    assert set(row) == set(types)
    assert (types["story_points"], types["team_10021"], types["due"]) == ("number", "json", "date")


def test_missing_fields_projects_and_logins_are_reported_by_check(site: JiraServer) -> None:
    site.projects = {"1": {"id": "1", "key": "ACME", "name": "Acme"}}
    for more, message in (
        ({"customFields": ["Story points"]}, "no custom field Story points"),
        ({"projects": ["ACME", "GONE"]}, "no project GONE"),
    ):
        refused = site.connector(**more).check()
        assert isinstance(refused, Err)
        assert message in refused.error.message
    checked = site.connector(projects=["ACME"]).check()
    assert isinstance(checked, Ok)
    assert checked.value.startswith(f"{site.url} answers Bot, and has issues, ")
    site.is_login_right = False
    refused = site.connector().check()
    assert isinstance(refused, Err)
    assert isinstance(refused.error, AdapterRefused)
    assert TOKEN not in refused.error.message


@pytest.mark.law("N8", "N9")
def test_invalid_settings_are_refused_and_secrets_are_named(site: JiraServer) -> None:
    good = {"site": "https://acme.atlassian.net/", "email": EMAIL, "apiToken": TOKEN}
    sound = configured(connector_type("jira"), good)
    assert isinstance(sound, JiraSettings)
    assert sound.site == "https://acme.atlassian.net"
    assert JIRA.tables(sound)["issues"] == "jira_issues"
    assert secret_names(JIRA) == {"apiToken", "webhookSecret"}
    for more in (
        {"site": "acme.atlassian.net"},
        {"site": "https://me:pw@acme.atlassian.net"},
        {"site": "https://acme.atlassian.net/jira?x"},
        {"projects": ['ACME") OR project = "HR']},
        {"tables": [{"name": "issues"}, {"name": "issues"}]},
        {"tables": [{"name": "boards"}]},
        {"webhookSecret": "too short"},
    ):
        with pytest.raises(ValidationFailed) as refused:
            configured(JIRA, good | more)
        assert TOKEN not in refused.value.message
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        JIRA.make(sound, site.storage, Outside(("*.example.com",)))


SPRINT = {"id": 7, "name": "Sprint 7", "state": "active", "endDate": "2026-04-01T00:00:00.000Z"}
SLA = {
    "id": "10", "name": "Time to resolution", "completedCycles": [],
    "ongoingCycle": {"breached": False, "remainingTime": {"millis": 1_000}},
}  # fmt: skip


def test_sprints_and_slas_are_read_as_whole_objects(site: JiraServer) -> None:
    site.change("1", summary="a", customfield_10023=[SPRINT], customfield_10024=SLA)
    world = World(site, {"issues": "i"}, customFields=["*"])
    world.poll_to_the_end()
    row = world.rows("issues")["1"]

    assert (row["sprint"], row["time_to_resolution"]) == ([SPRINT], SLA)


@pytest.mark.law("N10", "N18")
@pytest.mark.parametrize("projects", [[], ["ACME"]])
def test_worklogs_disappear_and_reappear_with_their_issue(
    site: JiraServer, projects: list[str]
) -> None:
    site.put({"1": "stays", "2": "is hidden", "3": "is deleted", "4": "has none"})
    ids = {issue: site.log_work(issue, int(issue)) for issue in ("1", "2", "3", "2")}
    site.clock += timedelta(minutes=2)
    world = World(site, {"worklogs": "w"}, projects=projects, reconcileMinutes=60)
    world.poll_to_the_end()
    assert len(world.rows("worklogs")) == 4
    site.delete("3")
    site.hidden = {"2"}
    world.poll_to_the_end()
    assert len(world.rows("worklogs")) == 4, "it is noticed at its own interval"
    world.time.sleep_ms(3_600_000)
    world.poll_and_die(range(2, 40, 3))
    world.poll_to_the_end()
    assert set(world.rows("worklogs")) == {ids["1"]}
    site.hidden = set()
    for _ in range(2):
        world.time.sleep_ms(3_600_000)
        world.poll_to_the_end()
        assert {row["issue_id"] for row in world.rows("worklogs").values()} == {"1", "2"}
        assert len(world.rows("worklogs")) == 3
    before = world.deltas()
    world.time.sleep_ms(3_600_000)
    world.poll_to_the_end()

    assert world.deltas() == before, "at rest nothing is new"
