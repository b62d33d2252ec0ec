"""Bad tokens and malformed input on every route: a 4xx, a code, a sentence, no value told."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any, Final

import jwt
import pytest

from lakesync.connectors.incoming_webhooks import WEBHOOK_BODY_BYTES_MAX
from lakesync.runtime.authoriser import TOKEN_BYTES_MAX
from tests.compat.requests import Asker, now, row
from tests.support.local_gateway import SECRET
from tests.support.logs import logged
from tests.support.some import some

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

    import httpx

HIDDEN = "a value that nobody else may see"
CLAIM = "a claim that no answer repeats"
ROUTES = [
    ("POST", "/sync/{}/push"),
    ("GET", "/sync/{}/pull"),
    ("POST", "/sync/{}/pull"),
    ("GET", "/sync/{}/checkpoint"),
    ("POST", "/sync/{}/ticket"),
    ("GET", "/sync/{}/metrics"),
    ("GET", "/sync/{}/schema"),
    ("POST", "/admin/schema/{}"),
    ("GET", "/admin/schema/{}"),
    ("POST", "/admin/sync-rules/{}"),
    ("GET", "/admin/sync-rules/{}"),
    ("POST", "/admin/tables/{}"),
    ("GET", "/admin/tables/{}"),
    ("DELETE", "/admin/tables/{}/warehouse"),
    ("POST", "/admin/access/{}"),
    ("GET", "/admin/access/{}"),
    ("POST", "/admin/connectors/{}"),
    ("GET", "/admin/connectors/{}"),
    ("POST", "/admin/connectors/{}/shop"),
    ("GET", "/admin/connectors/{}/shop"),
    ("DELETE", "/admin/connectors/{}/shop"),
    ("POST", "/sync/{}/action"),
    ("GET", "/sync/{}/actions"),
    ("POST", "/sync/{}/attachments"),
    ("POST", "/sync/{}/attachments/download"),
    ("POST", "/admin/actions/{}"),
    ("GET", "/admin/actions/{}"),
    ("DELETE", "/admin/actions/{}/warehouse"),
    ("GET", "/admin/audit/{}"),
    ("GET", "/admin/clients/{}"),
    ("POST", "/admin/clients/{}"),
    ("POST", "/admin/flush/{}"),
    ("GET", "/admin/flushing/{}"),
    ("POST", "/admin/flushing/{}"),
    ("GET", "/admin/metrics/{}"),
    ("DELETE", "/admin/gateways/{}"),
    ("GET", "/admin/destinations/{}"),
    ("POST", "/admin/destinations/{}/warehouse"),
    ("DELETE", "/admin/destinations/{}/warehouse"),
    ("POST", "/admin/destinations/{}/warehouse/pause"),
    ("GET", "/admin/flows/{}"),
    ("POST", "/admin/flows/{}"),
    ("DELETE", "/admin/flows/{}/warehouse"),
    ("POST", "/admin/flows/{}/warehouse/pause"),
]
SIGNED = ("POST", "/connectors/{}/shop/webhook")
"""What a signature opens, and no token."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that is logged, at the most talkative level."""
    with logged(monkeypatch) as stream:
        yield stream


def refused(answer: httpx.Response, *statuses: int) -> str:
    """Check that an answer is an error in our words, and returns nothing away; returns its code."""
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    body = answer.json()
    assert body["code"].isupper()
    assert len(body["error"]) > 10
    assert body["requestId"]
    assert HIDDEN not in answer.text
    assert CLAIM not in answer.text
    code: str = body["code"]
    return code


@pytest.mark.parametrize("route", [route for route in ROUTES if route[1].startswith("/admin")])
def test_misspelt_parameter_of_an_admin_route_is_refused_and_named(
    route: tuple[str, str], gateway: Asker
) -> None:
    method, path = route
    answer = gateway.ask(method, f"{path}?tabel=todos", role="admin", json={})

    assert refused(answer, 400) == "VALIDATION_ERROR"
    assert "no parameter tabel" in answer.json()["error"]
    assert answer.json()["field"] == "tabel"


def test_parameter_given_twice_is_refused(gateway: Asker) -> None:
    answer = gateway.ask("POST", "/admin/flush/{}?table=todos&table=notes", role="admin")

    assert refused(answer, 400) == "VALIDATION_ERROR"
    assert "given twice" in answer.json()["error"]


# --- tokens ---------------------------------------------------------------------------------------


def _claims(gateway: Asker, **other: Any) -> dict[str, Any]:
    own = {"sub": "c1", "gw": gateway.id, "role": "admin", "exp": int(time.time()) + 600}
    return {"secret": CLAIM} | own | other


def _signed(gateway: Asker, key: str = SECRET, algorithm: str = "HS256", **other: Any) -> str:
    kept = {name: value for name, value in _claims(gateway, **other).items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm)


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _with(token: str, part: int, text: str) -> str:
    parts = token.split(".")
    parts[part] = text
    return ".".join(parts)


TOKENS: dict[str, Callable[[Asker], str]] = {
    "garbage": lambda _: "not-a-token",
    "three dots": lambda _: "a.b.c",
    "empty parts": lambda _: "..",
    "not base64": lambda g: _with(_signed(g), 1, "%%%"),
    "expired": lambda g: _signed(g, exp=int(time.time()) - 60),
    "not yet valid": lambda g: _signed(g, nbf=int(time.time()) + 600),
    "nbf is text": lambda g: _signed(g, nbf="soon"),
    "unsigned": lambda g: f"{_part({'alg': 'none', 'typ': 'JWT'})}.{_part(_claims(g))}.",
    "unsigned, odd case": lambda g: f"{_part({'alg': 'NoNe'})}.{_part(_claims(g))}.",
    "HS384": lambda g: _signed(g, key=SECRET * 2, algorithm="HS384"),
    "HS512": lambda g: _signed(g, key=SECRET * 2, algorithm="HS512"),
    "another secret": lambda g: _signed(g, key="x" * 40),
    "tampered payload": lambda g: _with(_signed(g), 1, _part(_claims(g, sub="c2"))),
    "tampered signature": lambda g: _with(_signed(g), 2, "A" * 43),
    "no signature": lambda g: _with(_signed(g), 2, ""),
    "header of another kind": lambda g: _with(_signed(g), 0, _part([])),
    "unknown kid, key in the header": lambda g: jwt.encode(
        _claims(g), "y" * 40, headers={"kid": "k", "jwk": {"kty": "oct", "k": "eQ"}}
    ),
    "without sub": lambda g: _signed(g, sub=None),
    "without gw": lambda g: _signed(g, gw=None),
    "without exp": lambda g: _signed(g, exp=None),
    "gw is a list": lambda g: _signed(g, gw=[g.id]),
    "exp is text": lambda g: _signed(g, exp="tomorrow"),
    "exp is true": lambda g: _signed(g, exp=True),
    "exp is endless": lambda g: _signed(g, exp=1e300),
    "sub is empty": lambda g: _signed(g, sub=""),
    "sub is too long": lambda g: _signed(g, sub="c" * 256),
    "role is unknown": lambda g: _signed(g, role="owner"),
    "role is a list": lambda g: _signed(g, role=["admin"]),
    "role is null": lambda g: jwt.encode(_claims(g) | {"role": None}, SECRET),
    "oversized": lambda g: _signed(g, padding="p" * TOKEN_BYTES_MAX),
}


@pytest.mark.parametrize("kind", TOKENS)
def test_invalid_token_is_refused_by_every_route_and_not_logged(
    gateway: Asker, log: io.StringIO, kind: str
) -> None:
    token = TOKENS[kind](gateway)
    for method, path in ROUTES:
        answer = gateway.ask(method, path, token=token, json={} if method == "POST" else None)
        assert refused(answer, 401) == "AUTH_ERROR", (method, path)
        assert token not in answer.text
    logged = log.getvalue()
    assert "token refused" in logged
    assert CLAIM not in logged
    assert not [part for part in token.split(".") if len(part) > 8 and part in logged]


def test_token_with_a_number_as_subject_is_refused(gateway: Asker) -> None:
    claims = _claims(gateway)
    payload = _part(claims | {"sub": 7})
    # The library that signs refuses such a claim, so it is signed by hand.
    key = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    head = _part({"alg": "HS256", "typ": "JWT"})
    signature = key.sign(f"{head}.{payload}".encode(), SECRET.encode())
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

    for method, path in ROUTES:
        answer = gateway.ask(method, path, token=f"{head}.{payload}.{text}", json={})
        assert refused(answer, 401) == "AUTH_ERROR"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_token_of_another_gateway_is_refused(gateway: Asker, method: str, path: str) -> None:
    answer = gateway.ask(method, path, token=_signed(gateway, gw="another"), json={})

    assert refused(answer, 403) == "FORBIDDEN"


@pytest.mark.parametrize("route", [route for route in ROUTES if route[1].startswith("/admin")])
def test_client_token_is_refused_by_admin_routes(gateway: Asker, route: tuple[str, str]) -> None:
    for role in ("client", None):
        answer = gateway.ask(*route, token=_signed(gateway, role=role), json={})
        assert refused(answer, 403) == "FORBIDDEN"


def _with_names(path: str) -> str:
    one = "shop" if "connectors" in path else "warehouse"
    for parameter, name in (("gateway", "{}"), ("name", one), ("action", "pause")):
        path = path.replace("{" + parameter + "}", name)
    return path


def test_every_served_route_is_covered_by_these_tests(gateway: Asker) -> None:
    described = gateway.ask("GET", "/openapi.json").json()["paths"]
    served = {
        (method.upper(), _with_names(path))
        for path, operations in described.items()
        for method in operations
        if "{gateway}" in path
    }
    assert served == {*ROUTES, SIGNED}


def test_signed_route_refuses_tokens_and_invalid_signatures(
    gateway: Asker, log: io.StringIO
) -> None:
    texts = set()
    for headers in (
        {},
        {"x-hub-signature": f"sha256={'0' * 64}"},
        {"x-hub-signature": "\u00e9".encode("latin-1")},
        {"webhook-id": "1", "webhook-timestamp": "9" * 4_000, "webhook-signature": "v1,="},
    ):
        answer = gateway.ask(*SIGNED, token=_signed(gateway), content=HIDDEN, headers=headers)
        assert refused(answer, 401) == "AUTH_ERROR"
        texts.add(answer.json()["error"])
    assert len(texts) == 1
    assert HIDDEN not in log.getvalue()
    packed = gateway.ask(*SIGNED, content=b"x", headers={"content-encoding": "gzip"})
    assert refused(packed, 400) == "VALIDATION_ERROR"
    large = gateway.ask(*SIGNED, content=b"x" * (WEBHOOK_BODY_BYTES_MAX + 1))
    assert refused(large, 413) == "BODY_TOO_LARGE"


# --- malformed input ------------------------------------------------------------------------------

ODD = [
    "abc",
    "-1",
    "1.5",
    "1e3",
    " 1",
    "0x10",
    "",
    "9" * 19,
    "9" * 4_000,
    "NaN",
    "\u0661",
    "1,2",
    "\x00",
]
PULLS = [
    *[{"since": odd} for odd in ODD],
    *[{"limit": odd} for odd in [*ODD, "0"] if odd.strip() == odd],
    *[{"epoch": odd} for odd in ["e" * 65, "e" * 10_000]],
    *[{"epoch": "another", "since": "{top}"}],
    *[{"scope": "s" * 5_000}],
    *[
        {"snapshot": odd}
        for odd in [
            "x", "|", "|||", "zz|||", "1|e|no table|", "1|e|todos|z", "begin ", "~", "1|~",
            "1||todos|", "1|~|||", "-5|||", "f" * 3_000, "\x00|\x00|\x00|\x00", "1|e|todos|0\x00",
            "7fffffffffffffff|zz|todos|0a", "1||~todos|x|y|z|w", "0|~.|.|.|.|.",
        ]
    ],
    *[{"removes": "perhaps"}, {"ownCursor": "perhaps"}, {"source": "nowhere"}, {"source": ""}],
    *[{"clientId": odd} for odd in ["", "\x00", "c" * 129]],
]  # fmt: skip


@pytest.fixture
def gateway_with_data(gateway: Asker) -> Asker:
    """A gateway that holds a row which nobody who asks here may see."""
    columns = [{"name": name, "type": "string"} for name in ("owner", "title")]
    assert gateway.administer("schema", {"table": "todos", "columns": columns}).status_code == 200
    filters = [{"column": "owner", "op": "eq", "value": "jwt:owner"}]
    rules = {"version": 1, "buckets": [{"name": "mine", "tables": ["todos"], "filters": filters}]}
    assert gateway.administer("sync-rules", rules).status_code == 200
    hidden = [{"column": "owner", "value": "o"}, {"column": "title", "value": HIDDEN}]
    assert gateway.push(row(columns=hidden, hlc=now())).json()["accepted"] == 1
    return gateway


def test_malformed_pull_is_refused_with_the_name_of_the_parameter(
    gateway_with_data: Asker, log: io.StringIO
) -> None:
    top = gateway_with_data.pull(client="client-1").json()["serverHlc"]
    for query in PULLS:
        sent = {"since": "0"} | {name: value.format(top=top) if "{top}" in value else value
                                 for name, value in query.items()}  # fmt: skip
        answer = gateway_with_data.ask("GET", "/sync/{}/pull", params=sent)
        if answer.status_code == 200:
            # A place or scope that nobody gave may be read as one; it shows what the rules allow.
            assert set(query) & {"snapshot", "scope", "clientId", "epoch", "limit"}, query
            assert HIDDEN not in answer.text
            continue
        refused(answer, 400, 403, 404, 409, 410)
        name = next(name for name in query if name != "since" or len(query) == 1)
        assert answer.json().get("field") in {name, "since", "scope", "snapshot"}, (
            query,
            answer.text,
        )
    assert HIDDEN not in log.getvalue()


@pytest.mark.parametrize(
    "query",
    [
        {"table": "no table"}, {"table": ""}, {"table": "t" * 65}, {"part": "-1"}, {"part": "x"},
        {"part": "9" * 40}, {"table": "todos", "part": "7"}, {"checkpoint": "x"},
        {"checkpoint": "../../etc"}, {"checkpoint": f"{'0' * 16}-{'f' * 16}"}, {},
    ],
)  # fmt: skip
def test_invalid_checkpoint_part_is_refused(
    gateway_with_data: Asker, query: dict[str, str]
) -> None:
    refused(gateway_with_data.ask("GET", "/sync/{}/checkpoint", params=query), 400, 404, 410)


BODIES: list[Any] = [
    b"", b"{", b"\xff\xfe", b"nul", b"NaN", b"1e999", b'{"a":1,"a":2}', b"[" * 50_000,
    b'"\\ud800"', [], None, True, 7, "text", {}, {"version": 1}, {"table": 7}, {"buckets": 7},
    {"clientId": "client-1", "deltas": [None, 7, "x", [], {}]},
]  # fmt: skip


TAKE_NO_BODY: Final = {path for _, path in ROUTES if path.endswith("/pause")}


@pytest.mark.parametrize("path", [path for method, path in ROUTES if method == "POST"])
def test_a_malformed_body_is_refused(gateway_with_data: Asker, log: io.StringIO, path: str) -> None:
    for body in BODIES:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        for kind in ("application/json", "application/x-protobuf", "text/plain", "\x7f"):
            headers = {"Content-Type": kind}
            answer = gateway_with_data.ask(
                "POST", path, content=raw, headers=headers, client="client-1", role="admin"
            )
            if answer.status_code != 200:
                # What takes no body asks first whether there is what the address names.
                refused(answer, 400, 403, 413, *([404] if path in TAKE_NO_BODY else []))
    assert HIDDEN not in log.getvalue()


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "gzip, gzip", "\x7f"])
def test_body_not_compressed_as_declared_is_refused(gateway_with_data: Asker, coding: str) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}

    refused(
        gateway_with_data.ask("POST", "/sync/{}/push", content=b"not that", headers=headers), 400
    )


RULES: list[Any] = [
    {"buckets": [7]},
    {"buckets": [{}]},
    {"buckets": [{"name": "", "tables": [], "filters": []}]},
    {"buckets": [{"name": "n", "tables": "todos", "filters": []}]},
    {"buckets": [{"name": "n", "tables": ["no where"], "filters": []}]},
    {"buckets": [{"name": "n", "tables": ["todos"], "filters": {}}]},
    {"buckets": [{"name": "n", "tables": ["todos"], "filters": [7]}]},
    {"buckets": [{"name": "n", "tables": ["todos"],
                  "filters": [{"column": "nothing", "op": "eq", "value": 1}]}]},
    {"buckets": [{"name": "n", "tables": ["todos"],
                  "filters": [{"column": "title", "op": "like", "value": "x"}]}]},
    {"buckets": [{"name": "n", "tables": ["todos"],
                  "filters": [{"column": "title", "op": "eq", "value": {"a": 1}}]}]},
    {"buckets": [{"name": "n", "tables": ["todos"],
                  "filters": [{"column": "title", "op": "eq", "value": "jwt:"}]}]},
    {"version": 0, "buckets": []},
    {"version": "1", "buckets": []},
    {"buckets": [{"name": "n", "tables": [], "filters": []}] * 101},
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES, ids=range(len(RULES)))
def test_malformed_rules_are_refused_with_the_path(
    gateway_with_data: Asker, rules: dict[str, Any]
) -> None:
    answer = gateway_with_data.administer("sync-rules", {"version": 1} | rules)
    assert refused(answer, 400) == "SYNC_RULES_ERROR"
    assert all(fault["path"] and fault["error"] for fault in some(answer.json()["faults"]))
    trial = gateway_with_data.ask(
        "POST", "/admin/sync-rules/{}?dryRun=true&as=%7B%7D", json={"version": 1} | rules,
        role="admin",
    )  # fmt: skip
    assert refused(trial, 400) == "SYNC_RULES_ERROR"


@pytest.mark.parametrize("claims", ["{", "[]", "7", "null", "\x00", "{" * 10_000, '{"a":NaN}'])
def test_trial_with_malformed_claims_is_refused(gateway_with_data: Asker, claims: str) -> None:
    answer = gateway_with_data.ask(
        "POST", "/admin/sync-rules/{}", params={"dryRun": "true", "as": claims},
        json={"version": 1, "buckets": []}, role="admin",
    )  # fmt: skip
    assert refused(answer, 400) == "VALIDATION_ERROR"


SCHEMAS: list[Any] = [
    {"table": "t", "columns": [7]},
    {"table": "t", "columns": [{"name": 7, "type": "string"}]},
    {"table": "t", "columns": [{"name": "a b", "type": "string"}]},
    {"table": "t", "columns": [{"name": "a", "type": "decimal(99,1)"}]},
    {"table": "t", "columns": [{"name": "a", "type": "string"}] * 2},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "primaryKey": "a"},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "primaryKey": ["b"]},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "softDelete": "no"},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "externalIdColumn": "b"},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "append": 1},
    {"table": "t", "columns": [{"name": "a", "type": "string"}], "colour": "red"},
    {"table": "t", "columns": [{"name": f"c{n}", "type": "string"} for n in range(501)]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_malformed_schema_is_refused_with_the_name_of_the_field(
    gateway_with_data: Asker, schema: dict[str, Any]
) -> None:
    answer = gateway_with_data.administer("schema", schema)

    assert refused(answer, 400, 409, 422) in {"VALIDATION_ERROR", "SCHEMA_ERROR", "CONFLICT"}
    assert answer.json()["field"]


def test_metrics_contain_no_row_data(gateway_with_data: Asker) -> None:
    answer = gateway_with_data.ask("GET", "/sync/{}/metrics")

    assert answer.status_code == 200
    assert HIDDEN not in answer.text
