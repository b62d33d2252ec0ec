"""Actions in Salesforce: done once where there is a field for the run, refused in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.actions import Done, Run
from lakesync.actions.engine import NOT_DONE, UNKNOWN, check_params
from lakesync.actions.service import registration_from
from lakesync.core.clock import stamp
from lakesync.core.messages import Action, ActionPush
from lakesync.errors import (
    ActionFailed,
    ActionInvalid,
    AdapterQuotaExceeded,
    LakeSyncError,
    OutcomeUnknown,
    Retry,
)
from lakesync.result import Err, Ok
from lakesync.systems.salesforce.salesforce_actions import (
    SalesforceActions,
    SalesforceActionSettings,
)
from tests.support.acting import ADMINISTRATOR, Acting
from tests.support.vendors.salesforce import CLIENT_ID, CLIENT_SECRET, SalesforceServer
from tests.support.vendors.server import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.result import Result

ACCOUNT = {
    "name": "Account", "actions": ["create", "update", "upsert"],
    "fields": ["Name", "AnnualRevenue"], "externalId": "External__c", "runField": "Run__c",
}  # fmt: skip
CONTACT = {"name": "Contact", "actions": ["create"]}
NEW = {"object": "Account", "fields": {"Name": "Acme"}}


def settings(org: SalesforceServer) -> dict[str, Any]:
    return {
        "instance": org.url, "clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET,
        "objects": [ACCOUNT, CONTACT],
    }  # fmt: skip


@pytest.fixture
def org() -> Iterator[SalesforceServer]:
    with SalesforceServer() as running:
        yield running


@pytest.fixture
def handler(org: SalesforceServer) -> Iterator[SalesforceActions]:
    made = SalesforceActions(SalesforceActionSettings.model_validate(settings(org)), org.outside)
    yield made
    made.close()


def run(action: str, params: dict[str, Any], run_id: str = "0" * 32) -> Run:
    return Run(run_id, "g", "c", "ann", action, params, 4.0)


def failed(result: Result[Any, LakeSyncError]) -> LakeSyncError:
    assert isinstance(result, Err)
    return result.error


@pytest.mark.law("X3", "X16")
def test_create_whose_answer_is_lost_makes_one_record(
    org: SalesforceServer, handler: SalesforceActions
) -> None:
    assert handler.lookup(run("create", NEW)) == Ok(NOT_DONE)
    org.hangs_up_after = 1
    assert isinstance(failed(handler.execute(run("create", NEW))), OutcomeUnknown)
    (row,) = org.objects["Account"].rows.values()
    assert handler.lookup(run("create", NEW)) == Ok(Done({"id": row["Id"]}))
    again = handler.execute(run("create", NEW))
    assert again == Ok(Done({"id": row["Id"], "created": False}))
    assert len(org.objects["Account"].rows) == 1
    other = handler.execute(run("create", NEW, "1" * 32))
    assert isinstance(other, Ok)
    assert other.value.data["created"] is True
    assert len(org.objects["Account"].rows) == 2


@pytest.mark.law("X3", "X16")
def test_create_without_a_run_field_is_unknown_when_its_answer_is_lost(
    org: SalesforceServer, handler: SalesforceActions
) -> None:
    new = {"object": "Contact", "fields": {"Name": "Ann"}}
    assert isinstance(handler.execute(run("create", new)), Ok)
    org.hangs_up_after = 1
    assert isinstance(failed(handler.execute(run("create", new))), OutcomeUnknown)
    assert handler.lookup(run("create", new)) == Ok(UNKNOWN)


@pytest.mark.law("X16")
def test_records_are_updated_by_id_and_upserted_by_external_id(
    org: SalesforceServer, handler: SalesforceActions
) -> None:
    by_key = {"object": "Account", "externalId": "a/b 1", "fields": {"Name": "First"}}
    first = handler.execute(run("upsert", by_key))
    assert isinstance(first, Ok)
    second = handler.execute(run("upsert", by_key | {"fields": {"Name": "Second"}}))
    row_id = first.value.data["id"]
    assert second == Ok(Done({"id": row_id, "created": False}))
    update = {"object": "Account", "id": row_id, "fields": {"AnnualRevenue": 5}}
    assert handler.execute(run("update", update)) == Ok(Done({"id": row_id, "created": False}))
    row = org.objects["Account"].rows[row_id]
    assert (row["Name"], row["AnnualRevenue"], row["External__c"]) == ("Second", 5, "a/b 1")
    assert handler.lookup(run("update", update)) == Ok(NOT_DONE)


@pytest.mark.law("X2", "X3", "X16")
def test_salesforce_errors_are_reported_and_those_before_the_write_are_retryable(
    org: SalesforceServer, handler: SalesforceActions
) -> None:
    for action, params, words in (
        ("update", {"object": "Account", "id": "0" * 18, "fields": {"Name": "x"}}, "404"),
        ("create", {"object": "Contact", "fields": {"Nme": "x"}}, "No such column 'Nme'"),
        ("create", {"object": "Account", "fields": {"Secret__c": "x"}}, "Secret__c"),
        ("create", {"object": "Account", "fields": {"Run__c": "x"}}, "Run__c"),
        ("update", {"object": "Contact", "id": "0" * 18, "fields": {"Name": "x"}}, "not allowed"),
    ):
        error = failed(handler.execute(run(action, params)))
        assert isinstance(error, ActionFailed)
        assert words in error.message
        assert CLIENT_SECRET not in error.message
    locked = [{"errorCode": "UNABLE_TO_LOCK_ROW", "message": "unable to obtain exclusive access"}]
    for fault in (Reply(400, locked), Reply(429)):
        org.faults = [fault]
        assert isinstance(failed(handler.execute(run("create", NEW))), AdapterQuotaExceeded)
    org.sessions.clear()
    org.is_secret_right = False
    error = failed(handler.execute(run("create", NEW)))
    assert error.retry is Retry.LATER
    assert not isinstance(error, OutcomeUnknown)
    assert org.objects["Account"].rows == {}


@pytest.mark.law("X1", "X3", "X16")
def test_action_is_done_once_although_its_answer_is_lost(
    org: SalesforceServer,
) -> None:
    acting = Acting(outside=org.outside)
    body = {"name": "crm", "type": "salesforce", "configuration": settings(org)}
    acting.admin.register("g", registration_from(body))
    org.faults = [lambda _: None]  # the login is answered; what follows is not

    def hang_up(_: Any) -> None:
        org.hangs_up_after = 1

    org.faults.append(hang_up)
    push = ActionPush("c", (Action("a-1", "c", stamp(1_700_000_000_000), "crm", "create", NEW),))
    outcomes = [
        acting.service.push("g", ADMINISTRATOR, push, lambda: 30_000).results[0] for _ in range(2)
    ]

    assert [outcome.code for outcome in outcomes] == ["", ""]
    assert outcomes[0].data == outcomes[1].data
    assert len(org.objects["Account"].rows) == 1


@pytest.mark.law("X4")
def test_parameters_that_do_not_fit_are_refused_without_a_request(
    org: SalesforceServer, handler: SalesforceActions
) -> None:
    offered = {each.name: each.params_schema for each in handler.supported_actions()}
    assert offered["create"]["properties"]["object"]["enum"] == ["Account", "Contact"]
    assert offered["upsert"]["properties"]["object"]["enum"] == ["Account"]
    for action, params in (
        ("create", {"object": "User", "fields": {"Name": "x"}}),
        ("create", {"object": "Account", "fields": {}}),
        ("create", {"object": "Account", "fields": {"Name": {"nested": 1}}}),
        ("update", {"object": "Account", "id": "../User/1", "fields": {"Name": "x"}}),
    ):
        with pytest.raises(ActionInvalid):
            check_params(offered[action], params)
    check_params(offered["create"], NEW)
    assert org.asked == []
