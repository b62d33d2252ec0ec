"""Requests and answers, to the letter, as the existing HTTP client sends and expects them.

The requests are those that its ``HttpTransport`` makes, and that its own tests look at.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.runtime.api import pull
from tests.compat.requests import HLC, now, row

if TYPE_CHECKING:
    import httpx

    from tests.compat.requests import Asker

KNOWN_CODES = {
    "VALIDATION_ERROR", "SCHEMA_ERROR", "BACKPRESSURE_ERROR", "CLOCK_DRIFT", "AUTH_ERROR",
    "FORBIDDEN", "NOT_FOUND", "RATE_LIMITED", "ADAPTER_ERROR", "FLUSH_ERROR", "INTERNAL_ERROR",
    "SYNC_RULES_ERROR", "CLIENT_TAKEN", "REVOKED",
}  # fmt: skip


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert body["code"] in KNOWN_CODES
    assert body["error"]
    assert body["requestId"]
    return body


class TestPush:
    def test_push_is_answered_with_a_decimal_stamp_and_a_count(self, gateway: Asker) -> None:
        answer = gateway.push(row("r1"), row("r2"))

        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.json()["serverHlc"].isdigit()
        assert (answer.json()["accepted"], answer.json()["deltas"]) == (2, [])

    def test_empty_push_is_accepted(self, gateway: Asker) -> None:
        assert gateway.push().json()["accepted"] == 0

    def test_a_repeated_push_is_accepted_again(self, gateway: Asker) -> None:
        assert [gateway.push(row()).json()["accepted"] for _ in range(2)] == [1, 1]

    @pytest.mark.parametrize("stamp", [HLC, "1", 1, 2**53 - 1])
    def test_stamps_may_be_text_or_exact_numbers(self, gateway: Asker, stamp: object) -> None:
        assert gateway.push(row(hlc=stamp), lastSeenHlc=stamp).json()["accepted"] == 1

    def test_unknown_fields_are_ignored(self, gateway: Asker) -> None:
        answer = gateway.push(row(colour="red"), sessionId="s", deviceInfo={"os": "x"})

        assert answer.json()["accepted"] == 1

    @pytest.mark.parametrize("header", ["content-type", "Content-Type", "CONTENT-TYPE"])
    @pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
    def test_headers_are_read_in_any_case(self, gateway: Asker, header: str, kind: str) -> None:
        body = {"clientId": "client-1", "deltas": [row()], "lastSeenHlc": "0"}
        answer = gateway.ask(
            "POST", "/sync/{}/push", content=json.dumps(body).encode(), headers={header: kind}
        )
        assert answer.json()["accepted"] == 1

    @pytest.mark.law("U1", "U4")
    def test_push_as_another_users_client_is_forbidden(self, gateway: Asker) -> None:
        body = {"clientId": "client-2", "deltas": [], "lastSeenHlc": "0"}
        gateway.pull(client="client-2")

        refused(gateway.ask("POST", "/sync/{}/push", json=body), 403, "CLIENT_TAKEN")

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"not json {{{", b"[]", b"null", b'{"deltas":[]}', b'{"clientId":"client-1"}',
            b'{"clientId":"client-1","deltas":{}}', b'{"clientId":"","deltas":[]}',
        ],
    )  # fmt: skip
    def test_a_malformed_push_is_a_400(self, gateway: Asker, body: bytes) -> None:
        answer = gateway.ask(
            "POST", "/sync/{}/push", content=body, headers={"Content-Type": "application/json"}
        )
        refused(answer, 400, "VALIDATION_ERROR")

    def test_bad_delta_does_not_affect_the_others(self, gateway: Asker) -> None:
        """The answer is that of the bad one, as nothing else of it is read."""
        sent = [row("r1"), row("r2", table="no table; DROP"), row("r3")]
        body = refused(gateway.push(*sent), 400, "VALIDATION_ERROR")

        assert body["field"] == "deltas[1].table"
        deltas = gateway.pull(client="client-2").json()["deltas"]
        assert [delta["rowId"] for delta in deltas] == ["r1", "r3"]

    def test_push_of_a_new_client_is_answered_with_the_refused_deltas(self, gateway: Asker) -> None:
        sent = [row("r1"), row("r2", table="no table; DROP")]
        answer = gateway.push(*sent, ownCursor=True).json()

        assert answer["accepted"] == 1
        assert [(item["index"], item["code"]) for item in answer["results"]] == [
            (1, "VALIDATION_ERROR")
        ]

    def test_stamp_ahead_of_the_clock_is_a_409(self, gateway: Asker) -> None:
        ahead = str(int(now()) + (60_000 << 16))
        body = refused(gateway.push(row("r1"), row("r2", hlc=ahead)), 409, "CLOCK_DRIFT")

        assert body["field"] == "deltas[1]"
        assert len(gateway.pull(client="client-2").json()["deltas"]) == 1

    @pytest.mark.parametrize("value", ["x" * 262_144, "half \ud83d"])
    def test_malformed_edit_is_reported_and_its_row_sent_again(
        self, gateway: Asker, value: str
    ) -> None:
        gateway.push(row("r1"))
        since = gateway.pull().json()["serverHlc"]
        column = {"column": "title", "value": value}
        answer = gateway.push(row("r1", "UPDATE", columns=[column], hlc=now()))
        assert answer.status_code in {400, 413}

        (*_, last) = gateway.pull(since).json()["deltas"]
        assert (last["rowId"], last["columns"]) == ("r1", [{"column": "title", "value": "Test"}])


class TestPull:
    def test_deltas_are_pulled_as_they_were_pushed(self, gateway: Asker) -> None:
        sent = [row("r1"), row("r1", "UPDATE", hlc=str(int(HLC) + 1)), row("r2", "DELETE")]
        gateway.push(*sent)
        answer = gateway.pull(client="client-2").json()
        deltas = [{k: v for k, v in delta.items() if k != "deltaId"} for delta in answer["deltas"]]

        assert deltas == sent
        assert all(len(delta["deltaId"]) == 64 for delta in answer["deltas"])
        assert (answer["serverHlc"].isdigit(), answer["hasMore"]) == (True, False)

    def test_deltas_below_the_cursor_are_not_sent_again(self, gateway: Asker) -> None:
        gateway.push(row("r1"))
        first = gateway.pull(client="client-2").json()
        gateway.push(row("r2", hlc=now()))
        second = gateway.pull(first["serverHlc"], client="client-2").json()

        assert [delta["rowId"] for delta in second["deltas"]] == ["r2"]
        assert int(second["serverHlc"]) > int(first["serverHlc"])

    def test_limit_ends_a_page_and_the_next_one_continues(self, gateway: Asker) -> None:
        for number in range(3):
            gateway.push(row(f"r{number}", hlc=str(int(HLC) + number)))
        row_ids, since, more = [], "0", True
        while more:
            page = gateway.pull(since, client="client-2", limit="1").json()
            row_ids += [delta["rowId"] for delta in page["deltas"]]
            since, more = page["serverHlc"], page["hasMore"]

        assert row_ids == ["r0", "r1", "r2"]

    @pytest.mark.law("F1")
    def test_page_cut_to_fit_and_lost_is_sent_again_after_a_push(
        self, gateway: Asker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its receipt must not lead it past what it never had."""
        for number in range(4):
            value = {"column": "title", "value": "x" * 3_000}
            gateway.push(row(f"r{number}", hlc=str(int(HLC) + number), columns=[value]))
        monkeypatch.setattr(pull, "ANSWER_BYTES_MAX", 12_000)
        plain = {"accept-encoding": "identity"}
        params = {"since": "0", "limit": "1000"}
        gateway.ask("GET", "/sync/{}/pull", params=params, headers=plain, client="client-2")
        since = gateway.push(
            row("mine", hlc=now(), clientId="client-2"), clientId="client-2"
        ).json()["serverHlc"]
        row_ids, more = set(), True
        while more:
            params = {"since": since, "limit": "1000"}
            answer = gateway.ask(
                "GET", "/sync/{}/pull", params=params, headers=plain, client="client-2"
            )
            assert len(answer.content) <= 12_000
            row_ids |= {delta["rowId"] for delta in answer.json()["deltas"]}
            since, more = answer.json()["serverHlc"], answer.json()["hasMore"]

        assert row_ids >= {"r0", "r1", "r2", "r3"}

    def test_an_empty_gateway_gives_an_empty_page(self, gateway: Asker) -> None:
        page = gateway.pull().json()

        assert (page["deltas"], page["hasMore"]) == ([], False)

    @pytest.mark.parametrize("value", [None, True, 0, 1.5, "é📱", "", {"a": [1, None]}, [[]]])
    def test_values_are_returned_as_json_and_nested_ones_as_text_to_existing_clients(
        self, gateway: Asker, value: object
    ) -> None:
        gateway.push(row(columns=[{"column": "title", "value": value}]))
        (own,) = gateway.pull(client="client-2", ownCursor="true").json()["deltas"]
        (delta,) = gateway.pull(client="client-2").json()["deltas"]

        assert own["columns"] == [{"column": "title", "value": value}]
        # An existing client cannot bind an object or a list to a statement.
        nested = isinstance(value, dict | list)
        text = json.dumps(value, separators=(",", ":")) if nested else value
        assert delta["columns"] == [{"column": "title", "value": text}]

    @pytest.mark.parametrize(
        "query",
        [
            {"since": "abc"}, {"since": "-1"}, {"since": "1.5"}, {"since": "9" * 30},
            {"limit": "0"}, {"limit": "-5"}, {"limit": "abc"},
        ],
    )  # fmt: skip
    def test_a_malformed_query_is_a_400(self, gateway: Asker, query: dict[str, str]) -> None:
        params = {"since": "0", "clientId": "client-1"} | query

        refused(gateway.ask("GET", "/sync/{}/pull", params=params), 400, "VALIDATION_ERROR")

    def test_an_unknown_source_is_a_404(self, gateway: Asker) -> None:
        refused(gateway.pull(source="nowhere"), 404, "NOT_FOUND")

    def test_limit_above_the_maximum_is_accepted(self, gateway: Asker) -> None:
        gateway.push(row())

        assert len(gateway.pull(limit="10001").json()["deltas"]) == 1

    @pytest.mark.law("U1")
    def test_second_client_of_a_user_has_a_cursor_of_its_own(self, gateway: Asker) -> None:
        """Whose cursor follows its receipts, as that of any existing client."""
        gateway.push(row("r1"))
        params = {"since": "0", "clientId": "tablet", "limit": "1000"}
        first = gateway.ask("GET", "/sync/{}/pull", params=params).json()
        body = {"clientId": "tablet", "deltas": [row("r2", clientId="tablet", hlc=now())]}
        receipt = gateway.ask("POST", "/sync/{}/push", json=body | {"lastSeenHlc": HLC}).json()
        gateway.push(row("r3", hlc=now()))
        params["since"] = receipt["serverHlc"]
        second = gateway.ask("GET", "/sync/{}/pull", params=params).json()

        assert [delta["rowId"] for delta in first["deltas"]] == ["r1"]
        assert {delta["rowId"] for delta in second["deltas"]} >= {"r3"}

    @pytest.mark.law("U1")
    def test_pull_as_another_users_client_is_forbidden(self, gateway: Asker) -> None:
        gateway.pull(client="client-2")
        params = {"since": "0", "clientId": "client-2"}

        refused(gateway.ask("GET", "/sync/{}/pull", params=params), 403, "CLIENT_TAKEN")
        path = "/sync/{}/checkpoint?clientId=client-2"
        refused(gateway.ask("GET", path), 403, "CLIENT_TAKEN")


class TestOtherRoutes:
    @pytest.mark.parametrize("prefix", ["", "/v1"])
    def test_every_route_is_served_with_and_without_v1(self, gateway: Asker, prefix: str) -> None:
        body = {"clientId": "client-1", "deltas": [row()], "lastSeenHlc": "0"}
        asked = [
            gateway.ask("POST", prefix + "/sync/{}/push", json=body),
            gateway.ask("GET", prefix + "/sync/{}/pull?since=0&clientId=client-1&limit=1000"),
            gateway.ask("GET", prefix + "/sync/{}/metrics"),
            gateway.ask("GET", prefix + "/admin/metrics/{}", role="admin"),
            gateway.ask("POST", prefix + "/admin/flush/{}", role="admin"),
            gateway.ask("GET", prefix + "/health"),
        ]
        assert [answer.status_code for answer in asked] == [200] * len(asked)

    def test_checkpoint_route_is_a_404_without_a_checkpoint(self, gateway: Asker) -> None:
        accept = {"Accept": "application/x-lakesync-checkpoint-stream"}

        refused(gateway.ask("GET", "/sync/{}/checkpoint", headers=accept), 404, "NOT_FOUND")

    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"primaryKey": ["row_id"]},
            {"primaryKey": ["row_id", "c_string"]},
            {"softDelete": False, "externalIdColumn": "c_string", "sourceTable": "other"},
        ],
    )
    def test_schema_in_the_existing_format_is_saved(
        self, gateway: Asker, more: dict[str, Any]
    ) -> None:
        kinds = ["string", "number", "boolean", "json", "null"]
        columns: list[dict[str, Any]] = [{"name": f"c_{kind}", "type": kind} for kind in kinds]
        columns[0]["references"] = {"table": "t", "column": "k", "cardinality": "many-to-one"}
        answer = gateway.administer("schema", {"table": "todos", "columns": columns} | more)

        assert answer.status_code == 200, answer.text
        assert answer.json()["saved"] is True

    def test_rules_in_the_existing_format_are_saved(self, gateway: Asker) -> None:
        ops = ["eq", "in", "neq", "gt", "lt", "gte", "lte"]
        filters = [{"column": "title", "op": op, "value": "jwt:sub"} for op in ops]
        rules = {"version": 1, "buckets": [{"name": "all", "tables": [], "filters": filters}]}
        gateway.administer(
            "schema", {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
        )

        assert gateway.administer("sync-rules", rules).json()["saved"] is True

    def test_a_flush_is_reported(self, gateway: Asker) -> None:
        assert gateway.administer("flush", {}).json()["flushed"] is True

    def test_flush_of_one_table_leaves_other_tables_unflushed(self, gateway: Asker) -> None:
        gateway.push(row("r", at=now(), table="flushed"), row("r", at=now(), table="waiting"))

        for batches in (1, 0):
            answer = gateway.ask("POST", "/admin/flush/{}?table=flushed", role="admin").json()
            assert (answer["table"], answer["batches"]) == ("flushed", batches)
        assert gateway.administer("flush", {}).json()["batches"] == 1

    def test_a_flush_of_an_unknown_table_is_a_404_and_flushes_nothing(self, gateway: Asker) -> None:
        answer = gateway.ask("POST", "/admin/flush/{}?table=unheard_of", role="admin")
        refused(answer, 404, "NOT_FOUND")
        assert "unheard_of" in answer.json()["error"]
        malformed = gateway.ask("POST", "/admin/flush/{}?table=1%2F2", role="admin")
        refused(malformed, 400, "VALIDATION_ERROR")

    @pytest.mark.parametrize(
        ("path", "body", "code"),
        [
            ("schema", b"{", "VALIDATION_ERROR"),
            ("schema", b'{"table":"todos"}', "VALIDATION_ERROR"),
            ("schema", b'{"table":"1","columns":[]}', "VALIDATION_ERROR"),
            ("schema", b'{"table":"t","columns":[]}', "SCHEMA_ERROR"),
            ("schema", b'{"table":"t","columns":[{"name":"a","type":"what"}]}', "SCHEMA_ERROR"),
            ("sync-rules", b"{", "VALIDATION_ERROR"),
            ("sync-rules", b"[]", "SYNC_RULES_ERROR"),
            ("sync-rules", b'{"version":1,"buckets":{}}', "SYNC_RULES_ERROR"),
        ],
    )
    def test_malformed_administration_is_a_400(
        self, gateway: Asker, path: str, body: bytes, code: str
    ) -> None:
        answer = gateway.ask("POST", f"/admin/{path}/{{}}", content=body, role="admin")

        refused(answer, 400, code)

    def test_admin_routes_require_the_administrator_role(self, gateway: Asker) -> None:
        refused(gateway.ask("POST", "/admin/flush/{}"), 403, "FORBIDDEN")

    def test_an_unknown_address_is_a_404(self, gateway: Asker) -> None:
        refused(gateway.ask("GET", "/sync/{}/nothing"), 404, "NOT_FOUND")


def test_only_stamps_are_in_fields_that_existing_clients_read_as_numbers(
    gateway: Asker,
) -> None:
    """It reads as a number every text whose name ends in ``hlc``, in any case, and no other."""
    gateway.push(row())
    answers = [gateway.push(row()).json(), gateway.pull(client="client-2").json()]

    def named(value: object) -> list[tuple[str, object]]:
        if isinstance(value, list):
            return [pair for item in value for pair in named(item)]
        if not isinstance(value, dict):
            return []
        return [pair for name, each in value.items() for pair in [(name, each), *named(each)]]

    stamps = [
        each for answer in answers for name, each in named(answer) if name[-3:].lower() == "hlc"
    ]
    assert len(stamps) == 3
    assert all(isinstance(each, str) and each.isdigit() for each in stamps)
