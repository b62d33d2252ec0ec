"""dlt's sources: what becomes of their state, their deletions, their secrets and their reach."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import boto3
import dlt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from lakesync.connectors import Change, Outside, Storage
from lakesync.connectors import poll as poll_module
from lakesync.connectors.registry import configured, secret_names, secrets_in, tables_of
from lakesync.connectors.state import DeadLetters
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from lakesync.systems.dlt import DLT, dlt_source, extraction
from lakesync.systems.dlt.extraction import instant_us
from lakesync.testing.connector_contract import Reader
from tests.support.dlt_sources import TOKEN, Api, DltSql, Folder, made
from tests.support.hosts import LOOPBACK
from tests.support.lake import Objects
from tests.support.vendors.server import Reply
from tests.support.vendors.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors import SourcePage
    from tools.local_stack.databases import Database

KINDS = ["by time", "replaced", "files"]


@pytest.fixture
def api() -> Iterator[Api]:
    with Api(by_time=True) as running:
        yield running


@contextmanager
def source(kind: str) -> Iterator[Api | Folder]:
    """Yield a source of some kind."""
    if kind == "files":
        with TemporaryDirectory() as folder:
            yield Folder(Path(folder))
    else:
        with Api(by_time=kind == "by time") as running:
            yield running


def read(connector: Any, cursor: str = "", table: str = "orders") -> Any:
    return connector.read(table, cursor, rows_max=10, poll_ms=2_000_000_000_000)


def page(connector: Any, cursor: str = "") -> SourcePage:
    answer = read(connector, cursor)
    assert isinstance(answer, Ok), answer
    return answer.value  # type: ignore[no-any-return]


def error(answer: Any) -> Any:
    assert isinstance(answer, Err), answer
    return answer.error


DEEDS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete"]), st.integers(1, 9)), min_size=1, max_size=9
)


@pytest.mark.law("N1", "N2", "N15")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(DEEDS, DEEDS, st.lists(st.integers(1, 25), max_size=4))
def test_rows_equal_those_of_the_source_wherever_polls_are_killed(
    kind: str, first: list[tuple[str, int]], second: list[tuple[str, int]], kills: list[int]
) -> None:
    with source(kind) as vendor, pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll_module, "PAGE_ROWS_MAX", 2)
        patch.setattr(extraction, "_EXTRACT_PARTS", 1)
        world = World(vendor, {"orders": "o"})
        expected: dict[str, str] = {}
        for number, deeds in enumerate((first, second)):
            for deed, row in deeds:
                if deed == "put" or f"{row}" not in expected:
                    expected[f"{row}"] = f"{number} {len(expected)}"
                    vendor.put({f"{row}": expected[f"{row}"]})
                else:
                    del expected[f"{row}"]
                    vendor.delete(f"{row}")
            world.poll_and_die(kills)
            world.poll_to_the_end()

            assert {row: each["value"] for row, each in world.rows("orders").items()} == expected
        given_ = world.deltas()
        world.poll_to_the_end()
        assert world.deltas() == given_, "at rest nothing is new"
        letters = Storage(world.objects, "g", "c").names("letters")
        assert not letters


@pytest.mark.law("N1", "N15")
def test_delivered_rows_are_not_kept_in_the_connector_storage(api: Api) -> None:
    api.put({f"{number}": "a value of its own" for number in range(25)})
    world = World(api, {"orders": "o"})
    world.poll_to_the_end()
    world.poll_to_the_end()

    assert len(world.rows("orders")) == 25
    assert not [key for key, body in world.objects.bodies.items() if b"of its own" in body]


@pytest.mark.law("N1", "N15")
@pytest.mark.parametrize("parts", [1, 10])
def test_child_resource_is_read_whole_and_continues_at_the_parents_cursor(
    api: Api, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_EXTRACT_PARTS", parts)
    api.put({f"{number}": "x" for number in range(1, 12)})
    lines = {
        "name": "lines", "primary_key": "id",
        "endpoint": {"path": "orders/{resources.orders.id}/lines", "data_selector": "lines"},
    }  # fmt: skip
    rest = api.settings["rest"]
    rest["resources"].append(lines)
    connector = api.connector(rest=rest, tables=[{"name": "lines"}])
    rows: set[str] = set()
    cursor, has_more, extractions = "", True, set()
    while has_more:
        answer = connector.read("lines", cursor, rows_max=4, poll_ms=1)
        assert isinstance(answer, Ok), answer
        rows |= {change.row_id for change in answer.value.changes}
        cursor, has_more = answer.value.cursor, answer.value.has_more
        extractions.add(cursor.partition(":")[0])

    assert rows == {f"{order}-{line}" for order in range(1, 12) for line in range(2)}
    assert (len(extractions) > 1) == (parts == 1)
    asked = len(api.asked)
    answer = connector.read("lines", cursor, rows_max=4, poll_ms=2)
    assert isinstance(answer, Ok)
    assert not answer.value.changes
    assert len(api.asked) - asked < 4, "lines of orders that did not change are not asked for"


@pytest.mark.law("N2", "N15")
def test_change_time_is_the_value_of_the_cursor_column(api: Api) -> None:
    api.put({"1": "a"})
    (change,) = page(api.connector()).changes

    assert change.changed_us == api.clock_us
    assert change.columns == {
        "id": "1", "value": "a", "deleted": False, "updated": api.rows["1"]["updated"]
    }  # fmt: skip


@pytest.mark.law("N15")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20.000001+00:00", 1_700_000_000_000_001),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000_000),
        (1_700_000_000, 1_700_000_000_000_000),
        (1_700_000_000_500, 1_700_000_000_500_000),
        ("2023-11-14", None),
        ("yesterday, about", None),
        (None, None),
        (True, None),
    ],
)
def test_instants_are_recognised_in_cursor_values(value: object, expected: int | None) -> None:
    assert instant_us(value) == expected


@pytest.mark.law("N15")
def test_unreadable_row_is_reported_and_the_others_are_read(api: Api) -> None:
    api.put({"1": "a", "2": "b"})
    api.rows["3"] = {"id": None, "updated": "2023-11-15T00:00:00Z", "deleted": False}
    api.rows["4"] = {"id": "4", "a b": 1, "a_b": 2, "updated": "2023-11-15T00:00:01Z"}
    read_ = page(api.connector())

    assert [change.row_id for change in read_.changes] == ["1", "2"]
    assert [(each.row_id, each.reason) for each in read_.unreadable] == [
        ("", "a row has no id, by which it is known"),
        ("4", "two columns of it would be called a_b"),
    ]


@pytest.mark.law("N6", "N9", "N15")
def test_http_errors_are_translated_and_lose_no_rows(api: Api) -> None:
    api.put({f"{number}": "x" for number in range(8)})
    connector = api.connector()
    expected: list[tuple[Reply, type[LakeSyncError], str]] = [
        (Reply(429, None, {"retry-after": "7"}), AdapterQuotaExceeded, "accepts no more requests"),
        (Reply(503, None), AdapterFailed, "failed with 503"),
        (Reply(200, b'{"orders": ['), AdapterFailed, "cut off"),
        (Reply(401, {"error": "no"}), AdapterRefused, "credentials"),
        (Reply(403, {"error": "no"}), AdapterRefused, "refused it with 403"),
        (Reply(404, {"error": "no"}), NotFound, "404"),
        (Reply(302, None, {"location": "/elsewhere"}), AdapterRefused, "not followed"),
    ]
    for reply, kind, sentence in expected:
        # In the middle: after a page that was read.
        api.faults = [lambda _: None, reply]
        said = error(read(connector))
        assert isinstance(said, kind), said
        assert sentence in said.message
        assert TOKEN not in said.message
    assert error(read(api.connector(secrets={"token": "another"}))).field == "credentials"
    api.faults = [lambda _: None, Reply(429, None, {"retry-after": "7"})]
    assert error(read(connector)).retry_after_s == 7
    reader = Reader(api)
    reader.poll()
    assert len(reader.rows) == 8


@pytest.mark.law("N9", "N15")
def test_links_paths_and_token_urls_to_another_host_are_refused(api: Api) -> None:
    with Api(by_time=True) as other:
        api.put({"1": "a"})
        api.resource["endpoint"]["paginator"] = {"type": "json_link", "next_url_path": "next"}
        api.faults = [Reply(200, {"orders": [{"id": "1"}], "next": f"{other.url}/v1/orders"})]
        api.resource["endpoint"].pop("incremental")
        api.resource["endpoint"].pop("params")
        assert "another host" in error(read(api.connector())).message

        api.resource["endpoint"]["path"] = f"{other.url}/v1/orders"
        assert "another host" in error(read(api.connector())).message

        api.auth = {
            "type": "oauth2_client_credentials", "access_token_url": f"{other.url}/oauth/token",
            "client_id": "me", "client_secret": {"secret": "token"},
        }  # fmt: skip
        with pytest.raises(ValidationFailed, match="ConnectorHosts"):
            api.connector()
        assert not other.asked
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        made(api.settings, api.storage, Outside(("*", "api.example.com")))


@pytest.mark.law("N15")
def test_oauth_token_is_requested_from_an_allowed_host(api: Api) -> None:
    api.auth = {
        "type": "oauth2_client_credentials", "access_token_url": f"{api.url}/oauth/token",
        "client_id": "me", "client_secret": {"secret": "token"},
    }  # fmt: skip
    api.put({"1": "a"})

    assert len(page(api.connector()).changes) == 1
    assert api.asked[0].path == "/oauth/token"


def test_response_action_ignore_gives_an_empty_page(api: Api) -> None:
    api.resource["endpoint"]["response_actions"] = [{"status_code": 404, "action": "ignore"}]
    api.faults = [Reply(404, {"error": "there are none yet"})]

    assert page(api.connector()).changes == ()


@pytest.mark.law("N15")
@pytest.mark.parametrize(
    ("hints", "sentence"),
    [
        ({"primary_key": None}, "has no primary key"),
        ({"write_disposition": "replace"}, "would replace what did not change"),
    ],
)
def test_resource_that_cannot_be_read_is_refused_with_the_reason(
    api: Api, hints: dict[str, Any], sentence: str
) -> None:
    api.resource |= hints
    if hints.get("primary_key", "") is None:
        del api.resource["primary_key"]
    for answer in (api.connector().check(), read(api.connector())):
        assert sentence in error(answer).message


@pytest.mark.law("N15")
def test_resource_without_row_order_is_refused_above_the_time_or_row_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extraction, "EXTRACT_S_MAX", 0)
    with Api(by_time=False) as api:
        api.put({f"{number}": "x" for number in range(8)})

        assert 'row_order "asc"' in error(read(api.connector())).message
        monkeypatch.setattr(extraction, "EXTRACT_S_MAX", 60)
        monkeypatch.setattr(extraction, "LISTED_ROWS_MAX", 7)
        assert "over 7 rows" in error(read(api.connector())).message


REST = {"client": {"base_url": "https://api.example.com/"}, "resources": ["orders"]}
FILES = {"bucketUrl": "s3://acme/in", "files": [{"name": "orders", "glob": "*.jsonl"}]}


def asked(**endpoint: Any) -> dict[str, Any]:
    """Return settings of one resource, by how it is asked for."""
    return {"rest": {**REST, "resources": [{"name": "orders", "endpoint": endpoint}]}}


@pytest.mark.law("N8", "N15")
@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({}, "name one of rest, sqlDatabase, filesystem and source"),
        ({"rest": REST, "filesystem": FILES}, "name one of"),
        ({"rest": {**REST, "resources": []}}, "rest.resources"),
        ({"rest": {**REST, "session": {}}}, "rest.session"),
        ({"rest": REST, "tables": [{"name": "customers"}]}, "there is no resource customers"),
        ({"rest": REST, "arguments": {"a": 1}}, "arguments are for source"),
        ({"rest": {**REST, "resources": ["a", "a"]}}, "named twice"),
        ({"source": "crm"}, "tables: name what is read"),
        ({"rest": {**REST, "client": {"base_url": "file:///etc/"}}}, "rest.client.base_url"),
        (
            {"rest": {**REST, "client": {**REST["client"], "auth": {"token": "s3cret"}}}},  # type: ignore[dict-item]
            'write {"secret": "<name>"} here',
        ),
        (
            {"rest": {**REST, "client": {**REST["client"], "headers": {"X-Api-Key": "s3cret"}}}},  # type: ignore[dict-item]
            "the header X-Api-Key is a secret",
        ),
        (
            {"rest": {**REST, "client": {**REST["client"], "auth": {"token": {"secret": "t"}}}}},  # type: ignore[dict-item]
            "there is no value of t",
        ),
        (asked(params={"apiKey": "s3cret", "page": 1}), "the parameter apiKey is a secret"),
        (asked(params={"key": "s3cret"}), "the parameter key is a secret"),
        (asked(path="/orders?api_key=s3cret"), "the parameter api_key is a secret"),
        (asked(data="grant=x&client_secret=s3cret"), "the parameter client_secret is a secret"),
        (asked(data={"password": "s3cret"}), "the parameter password is a secret"),
        (asked(json={"who": [{"access-token": "s3cret"}]}), "the member access-token is a secret"),
        (asked(params={"token": {"secret": "t"}}), "there is no value of t"),
        ({"filesystem": {**FILES, "bucketUrl": "s3://acme/../other"}}, "out of the folder"),
        ({"filesystem": {**FILES, "bucketUrl": "https://acme"}}, "filesystem.bucketUrl"),
        ({"filesystem": {**FILES, "files": [{"name": "a", "glob": "../*"}]}}, "out of the folder"),
        ({"filesystem": {**FILES, "files": [{"name": "a", "glob": "/etc/*"}]}}, "out of the"),
    ],
)
def test_invalid_settings_are_refused_with_the_fault_and_without_secrets(
    given_: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationFailed) as raised:
        configured(DLT, given_)

    assert sentence in raised.value.message
    assert "s3cret" not in raised.value.message


@pytest.mark.law("N8", "N15")
def test_values_that_merely_resemble_secrets_are_accepted() -> None:
    given_ = asked(
        path="/orders?author=ann",
        params={"page_token": "1", "sort": "key", "token": "{resources.logins.token}"},
        json={"key": "status", "keywords": ["secret"], "filter": {"author": "ann"}},
    )
    assert configured(DLT, given_).model_dump()["rest"]["resources"]


@pytest.mark.law("N8", "N15")
def test_secrets_are_stored_apart_and_filled_in_at_use(api: Api) -> None:
    assert secret_names(DLT) == {"secrets"}
    hidden = secrets_in(api.settings, secret_names(DLT))
    assert hidden == {"secrets": f'{{"token": "{TOKEN}"}}'}
    public = {name: value for name, value in api.settings.items() if name != "secrets"}
    assert TOKEN not in str(public)
    api.put({"1": "a"})

    api.connectors.append(made(public | hidden, api.storage, api.outside))
    assert len(page(api.connectors[-1]).changes) == 1


@pytest.mark.law("N15")
def test_missing_settings_are_not_looked_up_in_the_environment(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN", "CREDENTIALS", "SOURCES__REST_API__TOKEN"):
        monkeypatch.setenv(name, "the function's own")
    api.auth = {"type": "bearer"}

    with pytest.raises(ValidationFailed, match="needs token"):
        api.connector()


def crm(team: str, token: str) -> Any:
    """Return a source as a package of somebody's has it."""

    @dlt.source(name="crm")
    def made_() -> Any:
        return [
            dlt.resource(
                [{"id": 1, "team": team, "token": token}], name="people", primary_key="id"
            ),
            dlt.resource([{"id": 1, "day": 1}, {"id": 2, "day": 2}], name="visits"),
        ]

    return made_()


@pytest.mark.law("N15")
def test_only_sources_installed_with_the_deployment_are_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage(Objects(), "g", "c")
    entry = EntryPoint("crm", f"{__name__}:crm", dlt_source.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: crm)
    monkeypatch.setattr(
        dlt_source, "entry_points", lambda **wanted: EntryPoints([entry]).select(**wanted)
    )
    given_ = {
        "source": "crm", "arguments": {"team": "a", "token": {"secret": "t"}},
        "secrets": {"t": "hidden"},
        "tables": [
            {"name": "people", "as": "staff"},
            {"name": "visits", "hints": {
                "primary_key": "id", "incremental": {"cursor_path": "day", "row_order": "asc"}
            }},
        ],
    }  # fmt: skip
    connector = made(given_, storage, Outside())
    assert tables_of(DLT, configured(DLT, given_)) == {"people": "staff", "visits": "visits"}
    assert connector.check() == Ok("The source answers, and has people, visits.")
    assert page_of(connector, "people").changes == (
        Change("1", {"id": 1, "team": "a", "token": "hidden"}),
    )
    first = page_of(connector, "visits")
    assert [change.row_id for change in first.changes] == ["1", "2"]
    assert page_of(connector, "visits", first.cursor).changes == ()

    wrong = made(given_ | {"arguments": {"troop": 1}}, storage, Outside())
    assert "does not take these arguments" in error(wrong.check()).message
    missing = made(given_ | {"tables": [{"name": "cats"}]}, storage, Outside())
    assert "there is no resource cats; there are people, visits" in error(missing.check()).message
    for name in ("os:system", "dlt.sources.filesystem:readers", "subprocess"):
        with pytest.raises(ValidationFailed, match="there are: crm"):
            made(given_ | {"source": name}, storage, Outside(("*",)))


def page_of(connector: Any, table: str, cursor: str = "") -> SourcePage:
    answer = read(connector, cursor, table)
    assert isinstance(answer, Ok), answer
    return answer.value  # type: ignore[no-any-return]


@pytest.mark.law("N15")
def test_folders_not_listed_by_the_operator_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "inner").mkdir()
    folder = Folder(tmp_path / "in")
    folder.put({"1": "a"})
    first = page(folder.connector())
    assert [change.changed_us for change in first.changes] == [1_700_000_001_000_000]
    for hosts in (("*",), (f"file://{tmp_path}/inner",), (f"s3://{tmp_path}",), ()):
        with pytest.raises(ValidationFailed, match="ConnectorHosts"):
            made(folder.settings, folder.storage, Outside(hosts))
    (tmp_path / "secret").write_text('{"id": 1}\n')
    (folder.folder / "0.jsonl").symlink_to(tmp_path / "secret")
    assert "by a link" in error(read(folder.connector(), first.cursor)).message


@pytest.mark.law("N15")
def test_objects_of_a_bucket_are_read_by_the_stacks_own_client() -> None:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="acme")
        lines = "".join(f'{{"id": "{number}", "value": "{"x" * 900}"}}\n' for number in range(20))
        client.put_object(Bucket="acme", Key="in/2026/a.jsonl", Body=lines.encode())
        client.put_object(Bucket="acme", Key="in/notes.txt", Body=b"no rows")
        client.put_object(Bucket="acme", Key="other/b.jsonl", Body=b'{"id": "no"}\n')
        settings_ = {
            "filesystem": {"bucketUrl": "s3://acme/in", "files": [
                {"name": "orders", "glob": "**/*.jsonl"}
            ]},
            "tables": [{"name": "orders", "hints": {"primary_key": "id"}}],
        }  # fmt: skip
        storage = Storage(Objects(), "g", "c")
        outside = Outside(("*", "s3://acme/in/"), lambda _: client)
        connector = made(settings_, storage, outside)
        first = page(connector)
        second = page(connector, first.cursor)

        assert [change.row_id for change in (*first.changes, *second.changes)] == [
            f"{number}" for number in range(20)
        ]
        with pytest.raises(ValidationFailed, match="ConnectorHosts"):
            made(settings_, storage, Outside(("*", "s3://acme/i"), lambda _: client))


def test_settings_are_read_without_dlt_and_its_absence_is_reported() -> None:
    program = """
import sys
sys.modules["dlt"] = None
from lakesync.connectors import Outside, Storage
from lakesync.connectors.registry import configured, connector_type, described, tables_of
from lakesync.errors import ValidationFailed
kind = connector_type("dlt")
described(kind)
settings = configured(kind, {"rest": {
    "client": {"base_url": "https://api.example.com"}, "resources": ["a"]}})
assert tables_of(kind, settings) == {"a": "a"}
assert not {"requests", "sqlalchemy", "fsspec"} & set(sys.modules)
try:
    kind.make(settings, Storage(None, "g", "c"), Outside())
except ValidationFailed as error:
    print(error.message)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "ConnectorLayer" in done.stdout


@pytest.mark.law("N4", "N15")
def test_rows_without_a_cursor_do_not_stop_the_table_and_one_is_a_dead_letter(api: Api) -> None:
    api.put({f"{number}": "first" for number in range(1, 6)})
    api.rows["2"]["updated"] = api.rows["4"]["updated"] = None
    world = World(api, {"orders": "o"})
    for _ in range(2):
        world.poll_to_the_end()
        assert (set(world.rows("orders")), world.state.dead_letters) == ({"1", "3", "5"}, 1)
        assert world.state.fault is None
    (letter,) = DeadLetters(Storage(world.objects, "g", "c")).first(9)
    assert "it has no updated, by which the table is read" in letter["reason"]
    api.put({"2": "second", "4": "second", "6": "new"})
    world.poll_to_the_end()

    assert {row_id: row["value"] for row_id, row in world.rows("orders").items()} == {
        "1": "first", "2": "second", "3": "first", "4": "second", "5": "first", "6": "new"
    }  # fmt: skip
    assert world.state.dead_letters == 0


@pytest.mark.law("N15")
def test_cursor_missing_in_every_row_is_refused_unless_on_cursor_value_missing_is_set(
    api: Api,
) -> None:
    api.put({"1": "a"})
    api.resource["endpoint"]["incremental"]["cursor_path"] = "changed_on"
    refused = error(read(api.connector()))
    assert "no row has a value of changed_on" in refused.message
    for missing, given_ in (("exclude", []), ("include", ["1"])):
        api.resource["endpoint"]["incremental"]["on_cursor_value_missing"] = missing
        api.storage = Storage(Objects(), "g", missing)
        read_ = page(api.connector())
        assert ([each.row_id for each in read_.changes], read_.unreadable) == (given_, ())


@pytest.mark.emulator
@pytest.mark.law("N4", "N15")
def test_null_cursor_in_a_database_row_does_not_stop_the_table(postgres: Database) -> None:
    source = DltSql(postgres, "postgres", by_time=True)
    source.put({"1": "a", "2": "b"})
    source.run(f"UPDATE {source.table} SET changed = NULL WHERE id = 1")  # noqa: S608
    world = World(source, {source.table: "o"})
    world.poll_to_the_end()
    world.poll_to_the_end()
    was = (set(world.rows(source.table)), world.state.dead_letters)
    source.put({"1": "c"})
    world.poll_to_the_end()
    source.close()

    assert was == ({"2"}, 1)
    assert (set(world.rows(source.table)), world.state.dead_letters) == ({"1", "2"}, 0)


URLS = {
    "acme://u:p@db.example.com/d": (("*.example.org", "0.0.0.0/0"), "named in DatabaseHosts"),
    "acme://u:p@metadata.internal/d": (("localhost",), "named in DatabaseHosts"),
    "acme://u:p@169.254.169.254/d": (("169.254.169.254", "0.0.0.0/0"), "neither public nor"),
    "acme://u:p@10.0.0.1/d": ((), "neither public nor"),
    "postgresql://u:p@10.0.0.1/d": ((), "neither public nor"),
    "sqlite:////etc/passwd": (LOOPBACK, "names a host"),
    "sqlite://localhost/etc/passwd": (LOOPBACK, "connects to no host"),
    "filed://u:p@localhost/etc/passwd": (LOOPBACK, "connects to no host"),
    "nosuch://u:p@localhost/d": (LOOPBACK, "no driver for nosuch"),
    "mssql+pymssql://u:p@localhost/d": (LOOPBACK, r"no driver for mssql\+pymssql"),
    "acme://u:p@localhost/d?unix_socket=/tmp/s": (LOOPBACK, "leave out of the URL: unix_socket"),
    "postgresql://u:p@localhost/d?host=10.0.0.1": (LOOPBACK, "leave out of the URL: host"),
    "acme://u:p@localhost/d%3BSERVER=elsewhere": (LOOPBACK, "none of ;"),
    "acme://u:p%7D@localhost/d": (LOOPBACK, "none of ;"),
    "no URL": (LOOPBACK, "no URL of SQLAlchemy"),
}
"""URLs, each with what the operator lists and what is said."""


@pytest.mark.law("N15", "N19")
@pytest.mark.parametrize("url", URLS)
def test_database_url_reaches_only_hosts_that_the_operator_allows(url: str) -> None:
    listed, said = URLS[url]
    settings = {
        "sqlDatabase": {"url": {"secret": "url"}}, "secrets": {"url": url},
        "tables": [{"name": "t"}],
    }  # fmt: skip
    with pytest.raises(LakeSyncError, match=said) as refused:
        made(settings, Storage(Objects(), "g", "c"), Outside(databases=listed)).check().unwrap()
    assert "u:p" not in str(refused.value)


@pytest.mark.law("N15")
@pytest.mark.parametrize(
    "database", [{"url": "acme://u:p@localhost/d"}, {"url": {"secret": "none"}}, {}]
)
def test_database_url_must_be_a_stored_secret(database: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        configured(DLT, {"sqlDatabase": database, "tables": [{"name": "t"}]})
    assert "acme" not in str(refused.value)
