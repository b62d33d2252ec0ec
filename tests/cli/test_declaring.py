"""`lakesync schema` and `lakesync rules` against a real gateway: what is declared, and tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command_lines import lines, run
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway, write_stack_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result


FLIGHTS = {
    "table": "flights",
    "columns": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "integer"}],
    "partition": ["carrier"],
    "softDelete": True,
    "sourceTable": "dbo.flights",
}
MINE = {"column": "carrier", "op": "in", "value": "jwt:carriers"}
RULES = {"version": 1, "buckets": [{"name": "mine", "tables": ["flights"], "filters": [MINE]}]}
BROKEN = {"buckets": [{"name": "", "tables": ["Flights"], "filters": [MINE | {"op": "like"}]}]}


@pytest.fixture
def gateway(empty_folder: Path) -> Iterator[LocalGateway]:
    """A gateway with a table and rows, found by a stack file."""
    write("flights.json", FLIGHTS)
    write("rules.json", RULES)
    write("broken.json", BROKEN)
    with serve_gateway() as served:
        write_stack_file(empty_folder, served)
        assert run("schema", "put", "flights.json").exit_code == 0
        rows = [
            {"op": "INSERT", "table": "flights", "rowId": f"{carrier}{n}",
             "columns": {"carrier": carrier, "delay": n}}
            for carrier in ("UA", "DL") for n in range(8)
        ]  # fmt: skip
        assert run("push", "-", text=json.dumps(rows)).exit_code == 0
        yield served


def write(name: str, body: object) -> None:
    Path(name).write_text(json.dumps(body))


def fields_of(done: Result, name: str) -> list[str]:
    """Return the words of the line of a table that begins with a name."""
    return next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [name])


# --- schema ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gateway")
def test_schema_list_shows_versions_and_declared_options() -> None:
    run("schema", "put", "--table", "airports", "--column", "name:string")
    listed = run("schema", "list")
    assert listed.exit_code == 0
    assert fields_of(listed, "airports") == ["airports", "1", "1"]
    assert fields_of(listed, "flights")[:3] == ["flights", "1", "2"]
    assert "softDelete, sourceTable dbo.flights, partition carrier" in listed.stdout
    assert [item["table"] for item in lines(run("schema", "list", "--json"))] == [
        "airports", "flights",
    ]  # fmt: skip


@pytest.mark.usefixtures("gateway")
def test_a_shown_schema_can_be_saved_again_unchanged() -> None:
    shown = run("schema", "show", "flights")
    assert shown.stdout.startswith("flights, version 1: ")
    assert fields_of(shown, "delay") == ["delay", "integer", "true"]
    body = run("schema", "show", "flights", "--json").stdout
    again = run("schema", "put", "-", text=body)
    assert again.stdout == "flights: schema version 1 is in force\n"
    missing = run("schema", "show", "nobody")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("error: no schema is registered for table nobody")


@pytest.mark.usefixtures("gateway")
def test_a_refused_schema_change_suggests_a_new_table() -> None:
    write("other.json", FLIGHTS | {"append": True})
    done = run("schema", "put", "other.json")
    assert done.exit_code == 1
    assert "make a new table and copy the rows" in done.stderr


@pytest.mark.usefixtures("gateway")
def test_a_strict_gateway_refuses_tables_without_a_schema() -> None:
    edit = ("push", "--table", "free", "--row", "f1", "--set", "a=1")
    assert run("schema", "strict", "on").stdout == "tables without a schema are refused\n"
    assert "strict: tables without" in run("schema", "list").stderr
    refused = run(*edit)
    assert refused.exit_code == 1
    assert "table free has no schema" in refused.output
    assert run("schema", "strict", "off").stdout == "tables without a schema may be written\n"
    assert run(*edit).exit_code == 0
    assert run("schema", "strict", "perhaps").exit_code == 2


def test_schema_list_without_schemas_names_the_command_to_save_one(gateway: LocalGateway) -> None:
    token = gateway.token("ops", gateway="empty", role="admin")
    words = ("schema", "list", "--url", gateway.url, "--gateway", "empty", "--token", token)
    assert run(*words).exit_code == 1
    assert run("schema", "strict", "on", *words[2:]).exit_code == 0
    assert run(*words).stdout == "no table has a schema: lakesync schema put --help\n"
    assert run(*words, "--json").stdout == ""


# --- rules ----------------------------------------------------------------------------------------


def test_rules_check_lists_the_tables_of_valid_rules(gateway: LocalGateway) -> None:
    run("schema", "put", "--table", "airports", "--column", "name:string")
    checked = run("rules", "check", "rules.json")
    assert checked.exit_code == 0
    assert fields_of(checked, "flights") == [
        "flights", "mine", *["rows", "that", "it", "sees,", "and", "new", "ones"], "·",
    ]  # fmt: skip
    assert fields_of(checked, "airports") == ["airports", "·", "new", "rows", "·"]
    [answer] = lines(run("rules", "check", "rules.json", "--json"))
    assert (answer["valid"], answer["faults"]) == (True, [])
    assert gateway.buffer.config(GATEWAY).rules.buckets == ()


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("offline", [(), ("--schema", "flights.json")])
def test_rules_check_reports_every_fault_with_its_path(offline: tuple[str, ...]) -> None:
    checked = run("rules", "check", "broken.json", *offline)
    assert checked.exit_code == 1
    assert checked.stdout.startswith("3 faults")
    for path in ("buckets[0].name", "buckets[0].tables[0]", "buckets[0].filters[0].op"):
        assert fields_of(checked, path)
    [answer] = lines(run("rules", "check", "broken.json", *offline, "--json"))
    assert answer["valid"] is False
    assert {fault["path"] for fault in answer["faults"]} == {
        "buckets[0].name", "buckets[0].tables[0]", "buckets[0].filters[0].op",
    }  # fmt: skip


def test_rules_check_with_a_schema_file_sends_no_request(gateway: LocalGateway) -> None:
    Path("schemas.json").write_text(run("schema", "list", "--json").stdout)
    before = len(gateway.requests)
    checked = run("rules", "check", "rules.json", "--schema", "schemas.json", "--json")
    assert lines(checked)[0]["tables"] == [
        {"table": "flights", "buckets": ["mine"], "writers": "seen", "omitted": []}
    ]
    assert len(gateway.requests) == before
    omitting = RULES | {"omit": [{"tables": ["flights"], "columns": ["carrier"]}]}
    Path("omitting.json").write_text(json.dumps(omitting))
    lacking = run("rules", "check", "omitting.json", "--schema", "schemas.json")
    assert fields_of(lacking, "flights")[-1] == "carrier"
    Path("free.json").write_text(json.dumps(RULES).replace("flights", "free"))
    [free] = lines(run("rules", "check", "free.json", "--schema", "schemas.json", "--json"))
    assert [each["path"] for each in free["warnings"]] == ["buckets[0].tables[0]"]
    Path("bad.json").write_text('{"table": "a"}\n{"table":\n')
    bad = run("rules", "check", "rules.json", "--schema", "bad.json")
    assert (bad.exit_code, len(bad.stderr.splitlines())) == (2, 1)
    assert "bad.json, line 2: not JSON" in bad.stderr
    lacks = run("rules", "check", "rules.json", "--schema", "rules.json")
    assert lacks.exit_code == 1
    assert lacks.stderr.startswith("error: 3 faults in the schema: table: is missing;")


def test_rules_on_a_table_without_a_schema_give_a_warning(gateway: LocalGateway) -> None:
    Path("free.json").write_text(json.dumps(RULES).replace("flights", "free"))
    warning = "warning: buckets[0].tables[0]: the table free has no schema"
    assert warning in run("rules", "check", "free.json").output
    assert warning in run("rules", "put", "free.json").output
    assert lines(run("rules", "put", "free.json", "--json"))[0]["warnings"]
    run("schema", "strict", "on")
    assert run("rules", "put", "free.json").exit_code == 1
    assert gateway.buffer.config(GATEWAY).rules.tables() == {"free"}


def test_rules_try_counts_rows_that_a_client_would_gain_and_lose(gateway: LocalGateway) -> None:
    tried = run("rules", "try", "rules.json", "--as", '{"sub": "a", "carriers": ["UA"]}')
    assert tried.exit_code == 0, tried.output
    assert fields_of(tried, "flights") == ["flights", "8", "16", "0", "8", "·", "·"]
    assert "flights: 5 rows that would leave, of 8" in tried.stdout
    shown = [line.split() for line in tried.stdout.splitlines() if line.startswith(" DL")]
    assert len(shown) == 5
    assert all(row[1] == "DL" for row in shown)
    assert gateway.buffer.config(GATEWAY).rules.buckets == ()

    run("rules", "put", "rules.json")
    write("wider.json", {"buckets": [{"name": "all", "tables": ["flights"], "filters": []}]})
    tried = run("rules", "try", "wider.json", "--as", '{"carriers": "UA"}')
    assert fields_of(tried, "flights") == ["flights", "16", "8", "8", "0", "·", "·"]
    [answer] = lines(run("rules", "try", "wider.json", "--as", "{}", "--json"))
    assert (answer["saved"], answer["tables"][0]["enter"]["count"]) == (False, 16)


@pytest.mark.usefixtures("gateway")
def test_invalid_rules_or_claims_of_a_trial_are_reported_in_one_line() -> None:
    for words, code in (
        (("rules.json", "--as", "carrier"), 2),
        (("rules.json", "--as", "[]"), 2),
        (("missing.json", "--as", "{}"), 1),
        (("broken.json", "--as", "{}"), 1),
    ):
        done = run("rules", "try", *words)
        assert done.exit_code == code, done.output
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize(
    "command",
    [
        *(
            "schema put",
            "rules put",
            "rules check",
            "rules try --as {}",
            "connectors add",
            "flows plan",
        ),
        *("flows apply", "actions add", "destinations add w", "push"),
    ],
)
def test_an_input_file_that_is_not_utf_8_is_refused_by_name(command: str) -> None:
    Path("photo.jpg").write_bytes(b"\xff\xd8\xff\xe0")

    refused = run(*command.split(), "photo.jpg")

    assert refused.exit_code == 2
    assert refused.stderr == "error: photo.jpg is not UTF-8 text: invalid start byte\n"
