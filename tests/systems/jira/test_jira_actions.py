"""Actions in Jira: done once, found again when an answer is lost, refused in Jira's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.actions import Done, Run
from lakesync.actions.engine import NOT_DONE, UNKNOWN, check_params
from lakesync.actions.service import registration_from
from lakesync.connectors import Outside
from lakesync.core.clock import stamp
from lakesync.core.messages import Action, ActionPush
from lakesync.errors import (
    ActionFailed,
    ActionInvalid,
    AdapterQuotaExceeded,
    AdapterUnreachable,
    LakeSyncError,
    OutcomeUnknown,
    Retry,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from lakesync.systems.jira.jira_actions import LOOKS_MAX, JiraActions, JiraActionSettings
from tests.support.acting import ADMINISTRATOR, Acting
from tests.support.vendors.jira import EMAIL, TOKEN, JiraServer
from tests.support.vendors.server import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.result import Result

TASK = {"project": "ACME", "issueType": "Task", "summary": "Ship it"}


@pytest.fixture
def site() -> Iterator[JiraServer]:
    with JiraServer() as running:
        running.change("1", summary="first", status={"name": "Open"})
        yield running


class Jira:
    """A handler of a site, that waits without waiting."""

    def __init__(self, site: JiraServer) -> None:
        self.waited: list[float] = []
        settings = JiraActionSettings.model_validate(fields(site))
        self.handler = JiraActions(settings, site.outside, self.waited.append)

    def run(self, action: str, /, run_id: str = "0" * 32, **params: Any) -> Result[Done, Any]:
        return self.handler.execute(self.of(action, run_id, params))

    def look(self, action: str, /, run_id: str = "0" * 32, **params: Any) -> Any:
        return self.handler.lookup(self.of(action, run_id, params))

    def of(self, action: str, run_id: str, params: dict[str, Any]) -> Run:
        return Run(run_id, "g", "c", "ann", action, params, 4.0)


@pytest.fixture
def jira(site: JiraServer) -> Iterator[Jira]:
    made = Jira(site)
    yield made
    made.handler.close()


def fields(site: JiraServer, **more: Any) -> dict[str, Any]:
    return {"site": site.url, "email": EMAIL, "apiToken": TOKEN} | more


def failed(result: Result[Any, LakeSyncError]) -> LakeSyncError:
    assert isinstance(result, Err)
    return result.error


@pytest.mark.law("X15")
def test_created_issue_is_found_by_its_run(site: JiraServer, jira: Jira) -> None:
    created = jira.run("create", **TASK, description="one\ntwo", fields={"duedate": "2026-05-01"})
    assert isinstance(created, Ok)
    issue = site.issues[created.value.data["id"]]

    assert (issue.key, issue.fields["summary"]) == (created.value.data["key"], "Ship it")
    assert (issue.fields["duedate"], len(issue.fields["description"]["content"])) == (
        "2026-05-01", 2,
    )  # fmt: skip
    assert jira.look("create", **TASK) == Ok(Done(created.value.data))
    assert jira.look("create", "1" * 32, **TASK) == Ok(UNKNOWN)
    assert len(jira.waited) == LOOKS_MAX - 1


@pytest.mark.law("X3", "X15")
def test_lost_answer_is_resolved_by_lookup_without_repeating_the_action(
    site: JiraServer, jira: Jira
) -> None:
    site.hangs_up_after = 1
    assert isinstance(failed(jira.run("create", **TASK)), OutcomeUnknown)
    looked = jira.look("create", **TASK)
    assert isinstance(looked, Ok)
    assert looked.value.data["key"] in {each.key for each in site.issues.values()}
    site.hangs_up_after = 1
    comment = {"issue": "ACME-1", "body": "hello"}
    assert isinstance(failed(jira.run("comment", **comment)), OutcomeUnknown)
    (made,) = site.issues["1"].comments
    assert jira.look("comment", **comment) == Ok(Done({"id": made["id"]}))
    assert jira.look("comment", "1" * 32, **comment) == Ok(NOT_DONE)


@pytest.mark.law("X15")
def test_repeated_transition_and_assignment_change_nothing(site: JiraServer, jira: Jira) -> None:
    for changed in (True, False):
        done = jira.run("transition", issue="ACME-1", to="done")
        assert done == Ok(Done({"status": "Done", "changed": changed}))
    assert site.issues["1"].fields["moves"] == 1
    assert jira.look("transition", issue="ACME-1", to="done") == Ok(NOT_DONE)
    for account in ("acc-1", "acc-1", None):
        assert jira.run("assign", issue="1", accountId=account) == Ok(Done({"accountId": account}))
    assert site.issues["1"].fields["assignee"] is None


@pytest.mark.law("X2", "X15")
def test_jira_refusal_is_final_and_carries_its_message(site: JiraServer, jira: Jira) -> None:
    for action, params, words in (
        ("create", TASK | {"issueType": "Wish"}, "Specify a valid issue type"),
        ("comment", {"issue": "ACME-9", "body": "x"}, "Issue does not exist"),
        ("transition", {"issue": "ACME-1", "to": "Closed"}, "to In Progress, Done, not to Closed"),
        ("transition", {"issue": "ACME-9", "to": "Done"}, "Issue does not exist"),
        ("assign", {"issue": "ACME-1", "accountId": "acc-7"}, "cannot be assigned"),
    ):
        error = failed(jira.run(action, **params))
        assert isinstance(error, ActionFailed)
        assert words in error.message
        assert TOKEN not in error.message


@pytest.mark.law("X3", "X15")
def test_action_that_did_not_begin_is_retryable(site: JiraServer, jira: Jira) -> None:
    site.faults = [Reply(429, None, {"retry-after": "30"})]
    error = failed(jira.run("create", **TASK))
    assert isinstance(error, AdapterQuotaExceeded)
    assert error.retry_after_s == 30
    site.faults = [Reply(503)]  # before anything is written: its status is asked for
    error = failed(jira.run("transition", issue="ACME-1", to="Done"))
    assert error.retry is Retry.LATER
    assert not isinstance(error, OutcomeUnknown)
    site.faults = [Reply(500)]
    assert isinstance(failed(jira.run("create", **TASK)), OutcomeUnknown)
    site.is_login_right = False
    error = failed(jira.run("create", **TASK))
    assert error.retry is Retry.LATER, "somebody will mend the token"
    assert not isinstance(error, OutcomeUnknown)
    site.close()
    jira.handler.close()
    assert isinstance(failed(jira.run("create", **TASK)), AdapterUnreachable)


@pytest.mark.law("X1", "X3", "X15")
def test_action_is_done_once_although_its_answer_is_lost(site: JiraServer) -> None:
    acting = Acting(outside=site.outside)
    body = {"name": "tickets", "type": "jira", "configuration": fields(site, projects=["ACME"])}
    acting.admin.register("g", registration_from(body))
    site.hangs_up_after = 1
    action = Action("a-1", "c", stamp(1_700_000_000_000), "tickets", "create", TASK)
    push = ActionPush("c", (action,))
    outcomes = [
        acting.service.push("g", ADMINISTRATOR, push, lambda: 30_000).results[0] for _ in range(2)
    ]

    assert [outcome.code for outcome in outcomes] == ["", ""]
    assert outcomes[0].data == outcomes[1].data
    assert len(site.issues) == 2


@pytest.mark.law("X4", "X6")
def test_invalid_settings_and_parameters_are_refused(site: JiraServer) -> None:
    settings = JiraActionSettings.model_validate(
        fields(site, actions=["create", "comment"], projects=["ACME"])
    )
    handler = JiraActions(settings, site.outside)
    offered = {each.name: each.params_schema for each in handler.supported_actions()}
    assert set(offered) == {"create", "comment"}
    for action, params in (
        ("create", TASK | {"project": "HR"}),
        ("create", {"project": "ACME"}),
        ("create", TASK | {"labels": ["two words"]}),
        ("comment", {"issue": "../myself", "body": "x"}),
        ("comment", {"issue": "ACME-1", "body": ""}),
    ):
        with pytest.raises(ActionInvalid):
            check_params(offered[action], params)
    check_params(offered["create"], TASK)
    run = Run("0" * 32, "g", "c", "ann", "comment", {"issue": "HR-1", "body": "x"}, 4.0)
    assert isinstance(failed(handler.execute(run)), ActionFailed)
    assert site.asked == []
    with pytest.raises(ValidationFailed, match="ActionHosts"):
        JiraActions(settings, Outside(("*.atlassian.net",)))
    handler.close()
