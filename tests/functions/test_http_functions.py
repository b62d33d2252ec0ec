"""push, pull, admin and open, each with its events: one request in, one answer out."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from lakesync.buffer.memory_items import MemoryRemoval
from lakesync.connectors.registry import Definition
from lakesync.core.messages import Pull
from lakesync.errors import InternalError
from lakesync.ports import GATEWAY_KIND, Quota, Revocation
from lakesync.runtime import observe, wiring, wiring_connectors
from lakesync.wire import proto
from tests.functions.conftest import Context, event
from tests.support.builders import insert, push
from tests.support.gateways import pulled, pusher
from tests.support.lanes import open_lanes
from tests.support.polling import MemorySecrets
from tests.support.repository import LIBRARY, ROOT

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from tests.functions.conftest import Answer, Functions


def test_push_accepts_json(functions: Functions) -> None:
    answer = functions.http("push", "push_json")

    assert answer.status == 200
    assert answer.json["accepted"] == 3
    assert int(answer.json["serverHlc"]) > 0


def test_push_answers_protobuf_in_protobuf(functions: Functions) -> None:
    answer = functions.http("push", "push_protobuf")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert proto.decode_receipt(answer.body).accepted == 3


def test_push_reads_gzip(functions: Functions) -> None:
    assert functions.http("push", "push_gzip").json["accepted"] == 3


def test_the_same_push_again_is_accepted_as_duplicates(functions: Functions) -> None:
    functions.http("push", "push_json")
    answer = functions.http("push", "push_gzip")

    assert answer.json["accepted"] == 3
    assert {result["outcome"] for result in answer.json["results"]} == {"duplicate"}


@pytest.mark.law("U10")
@pytest.mark.parametrize(
    "name",
    [
        app.parent.name
        for app in sorted((ROOT / "functions").glob("*/app.py"))
        if "create_app(" in app.read_text()
    ],
)
def test_not_found_answers_forbid_caching_on_every_function(
    functions: Functions, name: str
) -> None:
    unserved = event("push_json")
    unserved["rawPath"] = unserved["requestContext"]["http"]["path"] = "/none"
    answer = functions.http(name, unserved)

    assert (answer.status, answer.headers["cache-control"]) == (404, "no-store")


def test_a_token_for_another_gateway_is_forbidden_and_writes_nothing(functions: Functions) -> None:
    answer = functions.http("push", "push_other_gateway")

    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")
    assert functions.buffer.gateways() == []


def test_an_invalid_token_is_answered_with_our_error_body(functions: Functions) -> None:
    answer = functions.http("push", "push_bad_token")

    assert answer.status == 401
    assert answer.json == {
        "error": "the token's signature matches no key in force",
        "code": "AUTH_ERROR",
        "requestId": "JKJaXmPLvHcESHA=",
    }


def test_a_delta_in_the_name_of_another_client_is_forbidden(functions: Functions) -> None:
    body = json.loads(event("push_json")["body"])
    answer = functions.http("push", event("push_json", body=body | {"clientId": "phone-9"}))

    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")
    assert answer.json["field"] == "deltas[0].clientId"


@pytest.mark.law("U1")
def test_a_client_belongs_to_its_first_user(functions: Functions) -> None:
    assert functions.http("push", event("push_json", sub="ann")).status == 200
    assert functions.http("pull", event("pull_first_page", sub="ann")).status == 200
    for name, folder in (("push_json", "push"), ("pull_first_page", "pull")):
        answer = functions.http(folder, event(name, sub="bob"))
        assert (answer.status, answer.json["code"]) == (403, "CLIENT_TAKEN")
        assert answer.json["field"] == "clientId"


@pytest.mark.law("U1")
def test_a_push_for_another_users_client_writes_nothing(functions: Functions) -> None:
    functions.access.bind("demo", "phone-1", "ann")
    functions.http("push", event("push_json", sub="bob"))

    assert functions.buffer.gateways() == []


@pytest.mark.law("U2")
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("push_json", "push"), ("pull_first_page", "pull"), ("pull_checkpoint", "pull"),
        ("admin_metrics", "admin"), ("admin_client_metrics", "admin"), ("admin_schemas", "admin"),
        ("admin_access", "admin"), ("admin_client_schemas", "admin"), ("admin_flush", "admin"),
    ],
)  # fmt: skip
def test_a_user_who_is_revoked_is_refused_on_every_route(
    functions: Functions, name: str, folder: str
) -> None:
    functions.access.revoke("demo", Revocation("user", "ann", 0, "ops"))
    answer = functions.http(folder, event(name, sub="ann"))

    assert (answer.status, answer.json["code"]) == (403, "REVOKED")


@pytest.mark.law("U2")
@pytest.mark.parametrize("name", ["push_json", "pull_first_page"])
def test_a_revoked_client_is_refused_and_its_users_other_clients_are_not(
    functions: Functions, name: str
) -> None:
    functions.access.revoke("demo", Revocation("client", "phone-1", 0, "ops"))
    folder = name.partition("_")[0]
    answer = functions.http(folder, event(name, sub="ann"))
    assert (answer.status, answer.json["code"]) == (403, "REVOKED")

    other = event("pull_first_page", query="since=0&clientId=tablet", sub="ann")
    assert functions.http("pull", other).status == 200


@pytest.mark.law("Q1")
def test_a_push_over_the_quota_is_answered_429_with_retry_after(
    functions: Functions,
) -> None:
    functions.quotas.set_quota("demo", Quota(1, None, None))
    push = functions.load("push")
    # 100 pushes a second until it is told otherwise, at a 32nd of what five seconds allow.
    statuses = [push(event("push_json"), Context())["statusCode"] for _ in range(60)]
    answer = push(event("push_json"), Context())

    assert 200 in statuses
    assert answer["statusCode"] == 429
    assert json.loads(answer["body"])["code"] == "RATE_LIMITED"
    assert 1 <= int(answer["headers"]["retry-after"]) <= 5


def used(text: str) -> dict[str, Any]:
    """Return what the only request of some output used."""
    (line,) = [line for line in map(json.loads, text.splitlines()) if "gateway" in line]
    assert "gateway" not in json.dumps(line["_aws"])  # a field, and no dimension
    names = ("gateway", "pushes", "deltasIn", "bytesIn", "pulls", "deltasOut", "bytesOut")
    return {name: line[name] for name in names if name in line}


def test_usage_of_each_gateway_is_logged(
    functions: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed = functions.http("push", "push_gzip")
    size = len(event("push_json")["body"].encode())
    assert used(capsys.readouterr().out) == {
        "gateway": "demo", "pushes": 1, "deltasIn": 3, "bytesIn": size,
        "bytesOut": len(pushed.body),
    }  # fmt: skip
    pulled = functions.http("pull", "pull_first_page")
    assert used(capsys.readouterr().out) == {
        "gateway": "demo", "pulls": 1, "deltasOut": 3, "bytesOut": len(pulled.body),
    }  # fmt: skip


def metrics_of(text: str) -> dict[str, Any]:
    """Return the metrics of gateways in some output, by name; each is of one stack and gateway."""
    values: dict[str, Any] = {}
    for line in map(json.loads, text.splitlines()):
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", []):
            if any("gateway" in names for names in directive["Dimensions"]):
                assert directive["Namespace"] == "LakeSync"
                assert directive["Dimensions"] == [["stack", "gateway"]]
                assert line["gateway"] == "demo"
                values |= {each["Name"]: sum(line[each["Name"]]) for each in directive["Metrics"]}
    return values


def test_usage_metrics_per_gateway_are_written_only_when_enabled(
    functions: Functions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.http("push", "push_json")
    assert metrics_of(capsys.readouterr().out) == {}
    monkeypatch.setenv("GATEWAY_METRICS", "yes")
    size = len(event("push_json")["body"].encode())

    functions.http("push", "push_json")
    assert metrics_of(capsys.readouterr().out) == {"DeltasIn": 3, "BytesIn": size}

    pulled = functions.http("pull", "pull_first_page")
    assert metrics_of(capsys.readouterr().out) == {
        "DeltasOut": len(pulled.json["deltas"]), "BytesOut": len(pulled.body),
    }  # fmt: skip


def test_a_stable_sample_of_gateways_has_its_own_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateways = [f"gateway-{number}" for number in range(2_000)]

    def measured(share: str) -> set[str]:
        monkeypatch.setenv("GATEWAY_METRICS", share)
        return {gateway for gateway in gateways if observe.has_metrics(gateway)}

    tenth = measured("10%")
    assert 150 < len(tenth) < 250
    assert measured("10%") == tenth
    assert measured("5%") < tenth < measured("50%")
    assert (measured("no"), measured("yes")) == (set(), set(gateways))
    monkeypatch.delenv("GATEWAY_METRICS")
    assert not observe.has_metrics("acme")


def change_access(functions: Functions, body: object) -> Answer:
    # JSON's null is a body, too.
    return functions.http("admin", event("admin_change_access", body=json.dumps(body), sub="ops"))


def revoked(functions: Functions) -> list[dict[str, str]]:
    answer = functions.http("admin", "admin_access")
    assert answer.status == 200
    listed: list[dict[str, str]] = answer.json["revoked"]
    return [{name: each[name] for name in each if name != "at"} for each in listed]


@pytest.mark.law("U2")
def test_an_administrator_revokes_and_restores_users_and_clients(functions: Functions) -> None:
    for target in ({"user": "ann"}, {"client": "phone-1"}):
        assert change_access(functions, {"revoke": target}).json == {"saved": True}
    both = [{"client": "phone-1", "by": "ops"}, {"user": "ann", "by": "ops"}]
    assert revoked(functions) == both
    assert functions.http("push", event("push_json", sub="ann")).status == 403

    for target in ({"user": "ann"}, {"client": "phone-1"}):
        assert change_access(functions, {"restore": target}).json == {"saved": True}
    assert revoked(functions) == []
    assert functions.http("push", event("push_json", sub="ann")).status == 200


@pytest.mark.law("U1")
def test_an_administrator_reads_a_clients_user_and_releases_the_client(
    functions: Functions,
) -> None:
    def user() -> str | None:
        sent = event("admin_access", query="client=phone-1")
        bound: str | None = functions.http("admin", sent).json["user"]
        return bound

    assert user() is None
    functions.http("push", event("push_json", sub="ann"))
    assert user() == "ann"
    assert change_access(functions, {"release": {"client": "phone-1"}}).json == {"saved": True}
    assert functions.http("push", event("push_json", sub="bob")).status == 200
    assert user() == "bob"


@pytest.mark.parametrize(
    "body",
    [
        None, [], {}, {"revoke": {}}, {"revoke": "ann"}, {"revoke": {"user": 7}},
        {"revoke": {"user": ""}}, {"revoke": {"user": "u" * 256}},
        {"revoke": {"client": "c" * 129}}, {"revoke": {"team": "a"}},
        {"revoke": {"user": "a", "client": "c"}},
        {"revoke": {"user": "a"}, "restore": {"user": "b"}}, {"release": {"user": "ann"}},
        {"restore": {"client": ""}}, {"release": {"client": ""}}, {"forget": {"user": "ann"}},
        {"revoke": {"user": "ops"}},
    ],
)  # fmt: skip
def test_a_malformed_change_of_access_is_refused(functions: Functions, body: object) -> None:
    answer = change_access(functions, body)

    assert (answer.status, answer.json["code"]) == (400, "VALIDATION_ERROR")
    assert revoked(functions) == []


def test_a_client_may_neither_read_nor_change_access(functions: Functions) -> None:
    for name in ("admin_access", "admin_change_access"):
        assert functions.http("admin", event(name, role="client")).json["code"] == "FORBIDDEN"


@pytest.mark.parametrize(
    "body", ["", "[]", "nul", "{}", '{"clientId": "phone-1"}', '{"clientId": 1, "deltas": []}']
)
def test_a_malformed_push_is_a_400_validation_error(functions: Functions, body: str) -> None:
    answer = functions.http("push", event("push_json", body=body))

    assert (answer.status, answer.json["code"]) == (400, "VALIDATION_ERROR")


def test_pull_returns_the_pushed_deltas_and_a_cursor(functions: Functions) -> None:
    functions.http("push", "push_json")
    answer = functions.http("pull", "pull_first_page")

    assert answer.status == 200
    assert [delta["rowId"] for delta in answer.json["deltas"]] == ["r1", "r1", "r2"]
    assert answer.json["hasMore"] is False

    after = _pull(functions, since=answer.json["serverHlc"])

    assert after.json["deltas"] == []
    assert after.json["serverHlc"] == answer.json["serverHlc"]


def test_pull_in_protobuf_gives_the_same_deltas(functions: Functions) -> None:
    functions.http("push", "push_json")
    answer = functions.http("pull", "pull_protobuf")

    assert answer.headers["content-type"] == "application/x-protobuf"
    assert proto.decode_page(answer.body).count == 3


def _pull(functions: Functions, **query: str) -> Any:
    return functions.http("pull", event("pull_first_page", query=query))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"), ("limit", "-1"), ("limit", "many"), ("limit", ""),
        ("since", "-1"), ("since", "x"), ("since", "9" * 19), ("since", "9" * 40), ("since", ""),
        ("epoch", "x" * 65), ("fresh", "maybe"), ("atLeast", "-1"), ("atLeast", "9" * 19),
    ],
)  # fmt: skip
def test_an_invalid_pull_parameter_is_named(functions: Functions, name: str, value: str) -> None:
    answer = _pull(functions, **{name: value})

    assert (answer.status, answer.json["field"]) == (400, name)
    assert answer.json["code"] in {"VALIDATION_ERROR", "INVALID_CURSOR"}


def test_a_page_states_its_lag_unless_a_commit_or_freshness_is_requested(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.log.read.RAISED_EVERY_MS", 60_000)
    functions.http("push", "push_json")
    gateway = event("push_json")["pathParameters"]["gateway"]
    open_lanes(functions.buffer, gateway, 2)
    first = _pull(functions, ownCursor="true").json
    assert "behindMs" not in first
    late = insert("late", at=1, client="phone-1")
    pusher(functions.buffer).push(gateway, push(late, client="phone-1"))
    newest = functions.buffer.heads(gateway)["main"].last_logged
    since = {"since": first["serverHlc"], "ownCursor": "true"}

    relaxed = _pull(functions, **since).json

    assert (relaxed["deltas"], relaxed["hasMore"]) == ([], False)
    assert relaxed["behindMs"] > 0
    for asked in ({"atLeast": str(newest)}, {"fresh": "true"}):
        page = _pull(functions, **since, **asked).json
        assert [delta["rowId"] for delta in page["deltas"]] == ["late"]
        assert "behindMs" not in page


def test_the_sample_pull_with_an_invalid_limit_is_refused(functions: Functions) -> None:
    assert functions.http("pull", "pull_bad_limit").status == 400


def test_a_limit_above_the_maximum_page_size_is_accepted(functions: Functions) -> None:
    assert _pull(functions, limit="10001").status == 200
    assert _pull(functions, limit="9" * 30).status == 200


def test_a_user_may_pull_under_an_unused_client_id(functions: Functions) -> None:
    functions.http("push", "push_json")
    page = _pull(functions, since="0", clientId="phone-9")

    assert page.status == 200
    assert page.json["deltas"]


def test_a_page_larger_than_a_lambda_answer_is_cut(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.http("push", "push_json")
    body = json.loads(event("push_json")["body"])
    for delta in body["deltas"]:
        delta["hlc"] = str(int(delta["hlc"]) + 10)
        del delta["deltaId"]
    functions.http("push", event("push_json", body=body))
    monkeypatch.setattr("lakesync.runtime.api.pull.ANSWER_BYTES_MAX", 6_000)
    sent = event("pull_first_page")
    sent["headers"]["accept-encoding"] = "identity"
    answer = functions.http("pull", sent)

    assert answer.json["hasMore"] is True
    assert len(answer.json["deltas"]) == 3


def test_an_administrator_registers_a_schema(functions: Functions) -> None:
    answer = functions.http("admin", "admin_schema")

    assert answer.json == {"saved": True, "version": 1}
    assert set(functions.buffer.config("demo").schemas) == {"todos"}


def _schemas(functions: Functions, table: str | None = None) -> Any:
    query = "" if table is None else f"table={table}"
    return functions.http("admin", event("admin_schemas", query=query))


def test_an_administrator_lists_schemas(functions: Functions) -> None:
    assert _schemas(functions).json == {"schemaVersion": 0, "tables": []}
    functions.http("admin", "admin_schema")
    registered = json.loads(event("admin_schema")["body"])

    listed = _schemas(functions).json

    assert listed["schemaVersion"] == 1
    [schema] = listed["tables"]
    assert (schema["table"], schema["version"]) == (registered["table"], 1)
    assert _schemas(functions, "todos").json == listed
    missing = _schemas(functions, "nobody")
    assert (missing.status, missing.json["code"]) == (404, "NOT_FOUND")
    assert _schemas(functions, "x" * 65).status == 400


def test_an_administrator_makes_a_gateway_strict(functions: Functions) -> None:
    def declare(body: object) -> Any:
        return functions.http("admin", event("admin_schema", body=body))

    assert declare({"strict": True}).json == {"saved": True}
    assert _schemas(functions).json == {"schemaVersion": 0, "tables": [], "strict": True}
    refused = functions.http("push", "push_json")
    assert (refused.status, refused.json["code"]) == (409, "TABLE_NOT_DECLARED")
    for body in ({"strict": 1}, {"strict": None}, {"strict": True, "table": "todos"}):
        assert declare(body).status == 400
    assert declare({"strict": False}).json == {"saved": True}
    assert functions.http("push", "push_json").json["accepted"] == 3


def hide_todos(functions: Functions) -> None:
    """Save rules by which no token of the sample events sees a todo."""
    bucket = {"name": "b", "tables": ["todos"],
              "filters": [{"column": "title", "op": "eq", "value": "jwt:team"}]}  # fmt: skip
    assert _try(functions, "", {"buckets": [bucket]}).status == 200


def test_a_client_reads_only_schemas_of_tables_its_claims_can_show(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    assert [s["table"] for s in functions.http("admin", "admin_client_schemas").json["tables"]] == [
        "todos"
    ]
    hide_todos(functions)

    answer = functions.http("admin", "admin_client_schemas").json

    assert answer == {"schemaVersion": 1, "tables": []}


def test_a_client_may_not_administer(functions: Functions) -> None:
    answer = functions.http("admin", "admin_not_admin")

    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")
    assert functions.buffer.config("demo").version == 0


def test_an_administrator_saves_and_reads_sync_rules(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    saved = functions.http("admin", "admin_sync_rules")
    sent = event("admin_sync_rules")
    sent["requestContext"]["http"]["method"] = "GET"
    answer = functions.http("admin", sent | {"body": ""})

    assert (saved.status, saved.json) == (200, {"saved": True})
    assert answer.json == json.loads(event("admin_sync_rules")["body"])


def _try(functions: Functions, query: str, body: object = None) -> Any:
    return functions.http("admin", event("admin_sync_rules", query=query, body=body))


def test_a_trial_of_sync_rules_saves_nothing(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    functions.http("push", "push_json")
    before = functions.buffer.config("demo")

    checked = _try(functions, "dryRun=true")
    tried = _try(functions, "dryRun=true&as=" + quote('{"sub": "Buy milk"}'))

    assert (checked.status, tried.status) == (200, 200)
    assert checked.json["saved"] is False
    assert [trial["table"] for trial in checked.json["tables"]] == ["todos"]
    [todos] = tried.json["tables"]
    assert (todos["seen"]["count"], todos["inForce"], todos["leave"]["count"]) == (1, 2, 1)
    assert tried.json["complete"] is True
    half = _try(functions, "dryRun=true&as=" + quote('{"sub": "\\ud800"}'))
    assert (half.status, half.json["tables"][0]["seen"]["count"]) == (200, 0)
    assert functions.buffer.config("demo") == before


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "1", "null", '{"sub":', '{"a":1,"a":2}', '{"a": NaN}', '"sub"',
     '{"a":"' + "x" * 6_200 + '"}', "[" * 5_000],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_invalid_claims_of_a_trial_are_refused(
    functions: Functions, text: str, dry_run: str
) -> None:
    functions.http("admin", "admin_schema")
    answer = _try(functions, f"dryRun={dry_run}&as={quote(text)}")

    assert (answer.status, answer.json["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json["field"] == "as"
    assert functions.buffer.config("demo").version == 1


def test_claims_without_a_dry_run_are_refused_and_nothing_is_saved(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    answer = _try(functions, "as=" + quote('{"sub": "c1"}'))

    assert (answer.status, answer.json["field"]) == (400, "as")
    assert functions.buffer.config("demo").version == 1
    assert _try(functions, "dryRun=perhaps").json["field"] == "dryRun"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("admin_sync_rules", '{"buckets":[{"name":"\\ud800","tables":[],"filters":[]}]}'),
        ("admin_sync_rules", ('{"buckets":[{"name":"a","tables":["todos"],"filters":'
         '[{"column":"title","op":"eq","value":"\\udfff"}]}]}')),
        ("admin_sync_rules", ('{"buckets":[{"name":"a","tables":["todos"],"filters":'
         '[{"column":"title","op":"in","value":"jwt:\\ud800"}]}]}')),
        ("admin_schema", ('{"table":"x","columns":[{"name":"a","type":"string"}],'
         '"sourceTable":"\\ud800"}')),
    ],
)  # fmt: skip
def test_a_declaration_with_an_unpaired_surrogate_is_refused(
    functions: Functions, name: str, body: str
) -> None:
    functions.http("admin", "admin_schema")
    refused = functions.http("admin", event(name, body=body))

    assert (refused.status, refused.json["code"]) == (400, "VALIDATION_ERROR")
    assert "half of a surrogate pair" in refused.json["error"]
    assert functions.buffer.config("demo").version == 1


def test_faulty_sync_rules_are_refused_alike_on_trial_and_on_saving(functions: Functions) -> None:
    body = {"buckets": [{"name": "", "tables": ["no body"], "filters": [1]}]}
    saved, tried = (_try(functions, query, body) for query in ("", "dryRun=true&as=%7B%7D"))

    assert (saved.status, saved.json) == (400, tried.json)
    assert len(saved.json["faults"]) == 3


def test_a_client_may_not_try_sync_rules(functions: Functions) -> None:
    sent = event("admin_sync_rules", query="dryRun=true&as=%7B%7D", role="client")

    assert functions.http("admin", sent).status == 403


def test_pulled_rows_depend_on_token_claims_by_the_sync_rules(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    functions.http("push", "push_json")
    everything = functions.http("pull", "pull_first_page").json["deltas"]
    functions.http("admin", "admin_sync_rules")  # title eq jwt:sub

    def pulled(sub: str) -> list[str]:
        sent = event("pull_first_page", query="since=0", sub=sub)
        return [delta["rowId"] for delta in functions.http("pull", sent).json["deltas"]]

    titled = {
        str(column["value"]): delta["rowId"]
        for delta in everything for column in delta["columns"] if column["column"] == "title"
    }  # fmt: skip
    assert titled
    for title, row_id in titled.items():
        assert set(pulled(title)) == {row_id}
    assert pulled("nobody") == []


def test_every_fault_of_sync_rules_is_reported(functions: Functions) -> None:
    functions.http("admin", "admin_schema")
    filters = [{"column": "nowhere", "op": "eq", "value": 1}, {"op": "is"}]
    bucket = {"name": "mine", "tables": ["todos"], "filters": filters}
    answer = _try(functions, "", {"buckets": [bucket]})

    assert (answer.status, answer.json["code"]) == (400, "SYNC_RULES_ERROR")
    paths = {fault["path"] for fault in answer.json["faults"]}
    assert any(path.startswith("buckets[0].filters[0]") for path in paths)
    assert any(path.startswith("buckets[0].filters[1]") for path in paths)


def test_rules_of_a_table_without_a_schema_are_saved_with_a_warning(functions: Functions) -> None:
    answer = functions.http("admin", "admin_sync_rules")  # no schema was registered

    assert (answer.status, answer.json["saved"]) == (200, True)
    assert [warning["path"] for warning in answer.json["warnings"]] == ["buckets[0].tables[0]"]


def test_an_invalid_schema_is_refused_as_a_schema_error(functions: Functions) -> None:
    schema = {"table": "todos", "columns": [{"name": "a", "type": "text"}]}
    answer = functions.http("admin", event("admin_schema", body=schema))

    assert (answer.status, answer.json["code"]) == (400, "SCHEMA_ERROR")


@pytest.mark.parametrize("name", ["admin_metrics", "admin_client_metrics"])
def test_administrators_and_clients_read_metrics(functions: Functions, name: str) -> None:
    functions.http("push", "push_json")
    answer = functions.http("admin", name)

    assert answer.status == 200
    assert answer.json["unflushedBytes"] > 0


def test_client_metrics_omit_tables_hidden_by_sync_rules(
    functions: Functions,
) -> None:
    functions.http("admin", "admin_schema")
    hide_todos(functions)
    of_administrator = event("admin_client_metrics", role="admin")

    assert functions.http("admin", "admin_client_metrics").json["tables"] == []
    assert functions.http("admin", "admin_metrics").json["tables"] == ["todos"]
    assert functions.http("admin", of_administrator).json["tables"] == ["todos"]


@pytest.fixture
def invoked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Have Lambda's Invoke answered; gives what is asked of it."""

    def answered(answer: dict[str, Any], *, failed: bool = False) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = []

        def invoke(**call: Any) -> dict[str, Any]:
            requests.append(call | {"Payload": json.loads(call["Payload"])})
            error = {"FunctionError": "Unhandled"} if failed else {}
            return {"Payload": BytesIO(json.dumps(answer).encode()), **error}

        monkeypatch.setattr(wiring, "client", lambda *_, **__: SimpleNamespace(invoke=invoke))
        return requests

    return answered


_DONE = {"batches": 1, "deltas": 3, "watermark": "77", "finished": True}


@pytest.mark.parametrize(
    ("answer", "failed", "status", "code"),
    [
        (_DONE, False, 200, None),
        (_DONE | {"finished": False}, False, 503, "FLUSH_ERROR"),
        ({"code": "ADAPTER_ERROR", "error": "S3 said no"}, False, 502, "ADAPTER_ERROR"),
        ({"code": "INTERNAL_ERROR", "error": "S3 said no"}, False, 500, "INTERNAL_ERROR"),
        ({"code": "OF_TOMORROW", "error": "S3 said no"}, False, 500, "INTERNAL_ERROR"),
        ({"errorMessage": "Task timed out"}, True, 503, "FLUSH_ERROR"),
    ],
)
def test_the_flush_route_returns_the_result_of_the_flush_function(
    functions: Functions,
    invoked: Callable[..., list[dict[str, Any]]],
    answer: dict[str, Any],
    failed: bool,  # noqa: FBT001 - a case
    status: int,
    code: str | None,
) -> None:
    requests = invoked(answer, failed=failed)
    got = functions.http("admin", "admin_flush")

    assert got.status == status
    assert got.json.get("code") == code
    assert "S3 said no" not in got.body.decode()
    assert requests[0]["Payload"] == {"gateway": "demo", "seconds": 20}
    if status == 200:
        assert got.json == {"flushed": True, "batches": 1, "deltas": 3, "watermark": "77"}
    if status == 503:
        assert int(got.headers["retry-after"]) > 0


def test_the_flush_route_passes_a_table_to_the_flush_function(
    functions: Functions, invoked: Callable[..., list[dict[str, Any]]]
) -> None:
    requests = invoked(_DONE)
    functions.http("admin", "admin_schema")
    got = functions.http("admin", event("admin_flush", query="table=todos"))

    assert got.json == {"flushed": True, "table": "todos"} | {
        key: _DONE[key] for key in ("batches", "deltas", "watermark")
    }
    wanted = {"gateway": "demo", "seconds": 20, "table": "todos"}
    assert requests[0]["Payload"] == wanted


_DELETED = {
    "deletedAt": "2026-01-01T00:00:00Z", "finished": True, "left": {"rows": 0}, "gone": True,
    "proved": False, "provableFrom": "2026-01-01T00:16:00Z",
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "failed", "status", "code"),
    [
        (_DELETED, False, 200, None),
        (_DELETED | {"finished": False, "left": {}, "gone": False}, False, 200, None),
        ({"code": "NOT_FOUND", "error": "there is no gateway demo"}, False, 404, "NOT_FOUND"),
        ({"code": "UNAVAILABLE", "error": "DynamoDB is busy"}, False, 503, "UNAVAILABLE"),
        ({"errorMessage": "Task timed out"}, True, 502, "ADAPTER_ERROR"),
    ],
)
def test_the_delete_route_invokes_the_retain_function(
    functions: Functions,
    invoked: Callable[..., list[dict[str, Any]]],
    answer: dict[str, Any],
    failed: bool,  # noqa: FBT001 - a case
    status: int,
    code: str | None,
) -> None:
    requests = invoked(answer, failed=failed)
    # Whoever deletes it may have to go on once everybody else is revoked.
    functions.access.revoke("demo", Revocation(GATEWAY_KIND, "demo", 0, "ops"))
    got = functions.http("admin", "admin_delete_gateway")

    assert (got.status, got.json.get("code")) == (status, code)
    assert requests[0]["FunctionName"] == "retain"
    assert requests[0]["Payload"] == event("retain_delete")
    if status == 200:
        assert got.json == answer


@pytest.mark.law("E1")
@pytest.mark.parametrize(
    ("name", "folder"),
    [("push_json", "push"), ("pull_first_page", "pull"), ("pull_checkpoint", "pull"),
     ("attachments_upload", "attachments"), ("attachments_download", "attachments"),
     ("admin_schema", "admin"), ("admin_flush", "admin"), ("admin_metrics", "admin")],
)  # fmt: skip
def test_requests_to_a_deleted_gateway_are_answered_410_and_store_nothing(
    functions: Functions, name: str, folder: str
) -> None:
    functions.access.revoke("demo", Revocation(GATEWAY_KIND, "demo", 0, "ops"))
    answer = functions.http(folder, name)

    assert (answer.status, answer.json["code"]) == (410, "GATEWAY_DELETED")
    assert not any(MemoryRemoval(functions.buffer, functions.items).count("demo", ()).values())


def test_a_client_may_not_delete_a_gateway(functions: Functions) -> None:
    answer = functions.http("admin", event("admin_delete_gateway", role="client"))

    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_socket_request_to_the_http_api_is_answered_with_the_socket_url(
    functions: Functions, prefix: str
) -> None:
    sent = event("open_unknown") | {"rawPath": f"{prefix}/sync/demo/ws"}
    sent["requestContext"]["http"] |= {"method": "GET", "path": sent["rawPath"]}
    answer = functions.http("open", sent)

    assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")
    assert "wss://api.execute-api.eu-central-1.amazonaws.com/live" in answer.json["error"]
    assert "binary frames (1003)" in answer.json["error"]


def posted(body: Any, **headers: str) -> dict[str, Any]:
    """Return a pull whose request is in a body."""
    sent = event("pull_first_page")
    sent["requestContext"]["http"]["method"] = "POST"
    is_text = isinstance(body, dict)
    text = json.dumps(body) if is_text else base64.b64encode(body).decode()
    kind = {"content-type": "application/json" if is_text else "application/x-protobuf"}
    return sent | {
        "rawQueryString": "", "body": text, "isBase64Encoded": not is_text,
        "headers": sent["headers"] | kind | headers,
    }  # fmt: skip


def test_pull_parameters_may_be_sent_in_a_body(functions: Functions) -> None:
    functions.http("push", "push_json")
    by_get = functions.http("pull", "pull_first_page").json
    assert by_get["deltas"]

    for names in (("since", "limit"), ("sinceHlc", "maxDeltas")):
        body = {"clientId": "phone-1", **dict(zip(names, ("0", 1_000), strict=True))}
        assert functions.http("pull", posted(body)).json == by_get
    message = proto.encode_pull(Pull("phone-1", 0, 1_000, own_cursor=False))
    assert functions.http("pull", posted(message)).json == by_get
    # Without a client id it is the token's own, and another's is refused.
    assert functions.http("pull", posted({})).json == by_get
    functions.access.bind("demo", "tablet", "bob")
    assert functions.http("pull", posted({"clientId": "tablet"})).status == 403


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"clientId": 7}, "clientId"),
        ({"since": "soon"}, "since"),
        ({"sinceHlc": -1}, "sinceHlc"),
        ({"limit": 0}, "limit"),
        ({"maxDeltas": "many"}, "maxDeltas"),
        ({"removes": "yes"}, "removes"),
        ({"epoch": 1}, "epoch"),
        ({"quarantined": -1}, "quarantined"),
        ({"source": "warehouse"}, "source"),
        (b"\xff", None),
    ],
)
def test_a_malformed_pull_body_is_refused_with_its_field(
    functions: Functions, body: Any, field: str | None
) -> None:
    answer = functions.http("pull", posted(body))

    assert (answer.status, answer.json["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json.get("field") == field


def test_health_answers_ok(functions: Functions) -> None:
    assert functions.http("open", "open_health").json == {"status": "ok"}


def test_the_open_function_describes_the_whole_api(functions: Functions) -> None:
    document = functions.http("open", "open_document").json

    assert set(document["paths"]) == {
        "/health",
        "/sync/{gateway}/push",
        "/sync/{gateway}/pull",
        "/sync/{gateway}/checkpoint",
        "/sync/{gateway}/ticket",
        "/sync/{gateway}/metrics",
        "/sync/{gateway}/schema",
        "/admin/schema/{gateway}",
        "/admin/sync-rules/{gateway}",
        "/admin/tables/{gateway}",
        "/admin/tables/{gateway}/{name}",
        "/admin/access/{gateway}",
        "/admin/connectors/{gateway}",
        "/admin/connectors/{gateway}/{name}",
        "/sync/{gateway}/action",
        "/sync/{gateway}/actions",
        "/sync/{gateway}/attachments",
        "/sync/{gateway}/attachments/download",
        "/admin/actions/{gateway}",
        "/admin/actions/{gateway}/{name}",
        "/connectors/types",
        "/connectors/{gateway}/{name}/webhook",
        "/admin/destinations/{gateway}",
        "/admin/destinations/{gateway}/{name}",
        "/admin/destinations/{gateway}/{name}/{action}",
        "/admin/flows/{gateway}",
        "/admin/flows/{gateway}/{name}",
        "/admin/flows/{gateway}/{name}/{action}",
        "/admin/audit/{gateway}",
        "/admin/clients/{gateway}",
        "/admin/flush/{gateway}",
        "/admin/flushing/{gateway}",
        "/admin/gateways/{gateway}",
        "/admin/metrics/{gateway}",
    }


def test_the_open_function_answers_the_schema_of_messages(functions: Functions) -> None:
    answer = functions.http("open", "open_messages")

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.body == (LIBRARY / "lakesync" / "wire" / "lakesync.proto").read_bytes()


def test_an_unknown_path_is_answered_with_our_not_found_code(functions: Functions) -> None:
    answer = functions.http("open", "open_unknown")

    assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")


def test_a_wrong_method_is_answered_405_with_the_allowed_method(functions: Functions) -> None:
    answer = functions.http("open", "open_wrong_method")

    assert (answer.status, answer.json["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"


def test_actions_of_one_request_are_run_and_audited_separately(
    functions: Functions, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = MemorySecrets()
    monkeypatch.setattr(wiring_connectors, "secrets", lambda *_: secrets)
    registered = functions.http("admin", "admin_register_action")
    assert registered.json == {"registered": True, "name": "shipping", "actions": ["ship"]}

    listed = functions.http("actions", "actions_list").json["connectors"]["shipping"]
    assert [each["actionType"] for each in listed] == ["ship"]
    answer = functions.http("actions", "actions_run")
    assert answer.status == 200
    codes = [each.get("code", "DONE") for each in answer.json["results"]]
    assert codes == ["ACTION_VALIDATION_ERROR", "ACTION_NOT_SUPPORTED"]
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    audit = [line for line in lines if line["message"] == "action"]
    assert [(line["actionType"], line["user"], line["outcome"]) for line in audit] == [
        ("ship", "phone-1", "ACTION_VALIDATION_ERROR"),
        ("ship", "phone-1", "ACTION_NOT_SUPPORTED"),
    ]
    assert "whsec_" not in log.getvalue()
    assert "somewhere" not in log.getvalue()


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ZeroDivisionError("the secret detail"), "the secret detail"),
        (InternalError("DynamoDB refused Query: AccessDeniedException"), "AccessDeniedException"),
    ],
)
@pytest.mark.parametrize("name", ["push_json", "pull_first_page", "admin_metrics"])
def test_a_bug_and_a_refusal_by_dynamodb_are_a_500_with_the_request_id_and_no_detail(
    functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log: io.StringIO,
    name: str,
    error: Exception,
    detail: str,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    for method in ("heads", "config"):
        monkeypatch.setattr(functions.buffer, method, broken)
    answer = functions.http(name.partition("_")[0], name)
    [line] = [line for line in map(json.loads, log.getvalue().splitlines()) if "exception" in line]

    assert (answer.status, answer.json["code"]) == (500, "INTERNAL_ERROR")
    assert answer.json["requestId"] == "JKJaXmPLvHcESHA="
    assert detail not in answer.body.decode()
    assert (line["level"], line["correlation_id"]) == ("ERROR", "JKJaXmPLvHcESHA=")
    assert detail in line["exception"]
    counted = capsys.readouterr().out
    assert '"InternalErrors"' in counted
    assert '"Refused"' not in counted


def test_a_request_without_authoriser_context_is_refused(functions: Functions) -> None:
    sent = event("pull_first_page")
    del sent["requestContext"]["authorizer"]

    assert functions.http("pull", sent).status == 401


def test_handlers_write_one_metrics_line(
    functions: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    functions.call("push", "push_json")
    lines = [line for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]

    assert [json.loads(line)["DeltasAccepted"] for line in lines] == [[3.0]]


@pytest.mark.law("W9")
@pytest.mark.parametrize("form", ["text", "base64"])
def test_a_webhook_is_accepted_only_when_its_connectors_secret_verifies_it(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The signature is that of the bytes, in whichever form they come."""
    sent = event("webhook_jira")
    if form == "base64":
        packed = base64.b64encode(sent["body"].encode()).decode()
        sent |= {"body": packed, "isBase64Encoded": True}
    secrets = MemorySecrets()
    monkeypatch.setattr(wiring_connectors, "secrets", lambda *_: secrets)
    monkeypatch.setattr(wiring, "wall_clock", lambda: 1_795_251_601_000)
    settings = {"site": "https://acme.atlassian.net", "email": "a@b.c", "apiToken": "t"}
    hidden = {"apiToken": "t", "webhookSecret": "a secret of sixteen"}
    stored = Definition("jira", settings, 5).to_json()
    store = wiring_connectors.connector_store(None)  # type: ignore[arg-type]  # the fixture's
    assert store.add("demo", "tickets", stored, 0)
    assert functions.http("webhook", sent).status == 401
    secrets.put("demo/tickets", hidden)

    answers = [functions.http("webhook", sent) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.json for answer in answers] == [
        {"accepted": 1, "repeated": False},
        {"accepted": 0, "repeated": True},
    ]
    [delta] = pulled(functions.buffer, "demo")
    assert (delta.table, delta.row_id) == ("jira_issues", "10042")
