"""The commands against a real gateway: what they print, how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

from lakesync.adapters.database import RowImages
from lakesync.cli import input_output
from lakesync.cli.input_output import Output
from lakesync.core.delta import Op, make_delta
from lakesync.core.destinations import Destination
from lakesync.testing.database_contract import batch
from tests.support.command_lines import run
from tests.support.local_gateway import GATEWAY, SECRET, LocalGateway

pytestmark = pytest.mark.usefixtures("stack_file")


def lines(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


# --- push and pull --------------------------------------------------------------------------------


def test_a_pushed_edit_is_pulled_back_and_can_be_deleted() -> None:
    pushed = run(
        "push", "--table", "edits", "--row", "e1", "--set", "title=Buy milk", "--set", "n=2"
    )
    assert pushed.exit_code == 0, pushed.output
    assert pushed.stdout == "1 delta accepted\n"
    pulled = run("pull", "--rows", "--table", "edits", "--json")
    assert lines(pulled.stdout) == [
        {"table": "edits", "_row_id": "e1", "title": "Buy milk", "n": 2}
    ]
    assert run("push", "--table", "edits", "--row", "e1", "--delete").exit_code == 0
    assert lines(run("pull", "--rows", "--table", "edits", "--json").stdout) == []


def test_an_edit_made_offline_with_a_client_file_is_pushed_later(gateway: LocalGateway) -> None:
    edit = ("push", "--table", "kept", "--row", "k1", "--set", "a=1", "--database", "own.db")
    away = run(*edit, "--url", "http://127.0.0.1:9", "--gateway", GATEWAY, "--token",
               gateway.token("cli"))  # fmt: skip
    assert away.exit_code == 3
    again = run("push", "--table", "kept", "--row", "k2", "--set", "a=2", "--database", "own.db")
    assert again.stdout == "2 deltas accepted\n"


def test_a_file_of_deltas_pushed_again_is_all_duplicates() -> None:
    deltas = [
        {"op": "INSERT", "table": "files", "rowId": f"r{n}", "columns": {"n": n}, "hlc": str(n + 1)}
        for n in range(2_500)
    ]
    Path("deltas.json").write_text(json.dumps(deltas))
    first = json.loads(run("push", "deltas.json", "--json").stdout)
    assert (first["accepted"], first["duplicates"], first["refused"]) == (2_500, 0, [])
    again = json.loads(run("push", "deltas.json", "--json").stdout)
    assert (again["accepted"], again["duplicates"]) == (2_500, 2_500)
    pulled = run("pull", "--json", "--table", "files")
    assert len(lines(pulled.stdout)) == 2_500
    assert "serverHlc" in lines(pulled.stderr)[0]


def test_push_reads_the_output_of_pull_and_keeps_its_client_ids() -> None:
    line = '{"op":"INSERT","table":"piped","rowId":"p1","clientId":"phone","columns":{"a":[1]}}\n'
    assert run("push", "-", text=line + line.replace("p1", "p2")).exit_code == 0
    pulled = run("pull", "--json", "--table", "piped").stdout
    assert [delta["clientId"] for delta in lines(pulled)] == ["phone", "phone"]
    again = json.loads(run("push", "-", "--json", text=pulled).stdout)
    assert again["duplicates"] == 2


def test_pull_prints_its_cursor_and_continues_from_it() -> None:
    run("push", "--table", "first", "--row", "r", "--set", "a=1")
    cursor = run("pull").stderr.strip().rpartition(" ")[2]
    run("push", "--table", "second", "--row", "r", "--set", "a=1")
    deltas = lines(run("pull", "--json", "--since", cursor).stdout)
    assert [delta["table"] for delta in deltas] == ["second"]


def test_pull_reads_a_source_and_continues_from_its_snapshot(gateway: LocalGateway) -> None:
    declared = gateway.buffer.destinations(GATEWAY)
    warehouse = Destination("warehouse", "postgres", "warehouse")
    assert gateway.buffer.save_destinations(GATEWAY, declared.with_one(warehouse))
    stored = [
        make_delta(Op.INSERT, "stored", f"r{n}", {"n": n}, client_id="w", hlc=n) for n in (1, 2)
    ]
    gateway.sources.database.insert_deltas(batch("stored", stored[:1])).unwrap()
    first = run("pull", "--rows", "--json", "--source", "warehouse")
    snapshot = lines(first.stderr)[-1]["snapshot"]
    gateway.sources.database.insert_deltas(batch("stored", stored[1:], after=1)).unwrap()
    more = run("pull", "--json", "--source", "warehouse", "--snapshot", str(snapshot))

    assert lines(first.stdout) == [{"table": "stored", "_row_id": "r1", "n": 1}]
    assert [delta["rowId"] for delta in lines(more.stdout)] == ["r2"]
    assert "--snapshot" in run("pull", "--source", "warehouse").stderr
    images = RowImages("stored", 0, 9, {"r1": None})
    gateway.sources.database.put_rows(images).unwrap()
    again = run("pull", "--source", "warehouse", "--snapshot", str(snapshot)).stderr
    assert "discard earlier rows of: stored" in again
    assert "no source" in run("pull", "--source", "elsewhere").stderr
    assert run("pull", "--source", "warehouse", "--since", "5").exit_code == 2


def test_a_refused_delta_is_named_and_the_others_are_accepted() -> None:
    body = [
        {"op": "INSERT", "table": "mixed", "rowId": "a", "columns": {"n": 1}},
        {"op": "INSERT", "table": "mixed", "rowId": "b", "columns": {"n": 1}, "hlc": str(2**62)},
    ]
    done = run("push", "-", text=json.dumps(body))
    assert done.exit_code == 1
    assert "1 delta accepted" in done.stdout
    assert done.stderr.startswith("refused: delta 1: CLOCK_DRIFT: ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"op":"INSERT"\n', "standard input, line 1: not JSON"),
        ('[{"op":"INSERT","table":"a b","rowId":"r"}]', "deltas[0].table"),
        ('[{"op":"UPSERT","table":"a","rowId":"r"}]', "op must be INSERT, UPDATE or DELETE"),
        ("[7]", "delta 0 is not a JSON object"),
    ],
)
def test_a_malformed_file_of_deltas_is_refused_with_the_position(text: str, sentence: str) -> None:
    done = run("push", "-", text=text)
    assert done.exit_code in {1, 2}
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("push",),
        ("push", "--table", "t"),
        ("push", "--table", "t", "--row", "r"),
        ("push", "--table", "t", "--row", "r", "--delete", "--set", "a=1"),
        ("push", "x.json", "--table", "t"),
        ("push", "--table", "t", "--row", "r", "--set", "novalue"),
        ("pull", "--since", "yesterday"),
        ("token", "--role", "king"),
        ("token", "--ttl", "forever"),
        ("token", "--claim", "sub=x"),
        ("schema", "put"),
        ("schema", "put", "--table", "t", "--column", "untyped"),
        ("replay", "everything"),
        ("query", "select 1", "--as-of", "soon"),
    ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


# --- tokens ---------------------------------------------------------------------------------------


def test_the_token_command_prints_only_a_token_with_the_requested_claims() -> None:
    words = ("token", "--client", "ops", "--role", "admin", "--ttl", "30m", "--claim", "region=eu")
    signed = run(*words).stdout
    assert signed.count("\n") == 1
    claims = jwt.decode(signed.strip(), SECRET, algorithms=["HS256"])
    assert (claims["sub"], claims["gw"], claims["role"], claims["region"]) == (
        "ops",
        GATEWAY,
        "admin",
        "eu",
    )
    assert claims["exp"] - claims["iat"] == 1_800


def test_a_token_in_the_environment_determines_client_id_and_role(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_TOKEN", gateway.token("tablet"))
    run("push", "--table", "own", "--row", "r", "--set", "a=1")
    deltas = lines(run("pull", "--json", "--table", "own").stdout)
    assert [delta["clientId"] for delta in deltas] == ["tablet"]
    refused = run("flush")
    assert refused.exit_code == 4
    assert refused.stderr.startswith("error: this route needs a token whose role is admin")


def test_a_command_without_token_and_stack_names_the_token_variable(
    gateway: LocalGateway,
) -> None:
    done = run("pull", "--url", gateway.url, "--gateway", GATEWAY)
    assert done.exit_code == 2
    assert "set LAKESYNC_TOKEN" in done.stderr


@pytest.mark.parametrize("words", [("pull",), ("flush",), ("push", "-")])
def test_an_expired_token_is_reported_in_one_line_and_never_printed(words: tuple[str, ...]) -> None:
    bad = jwt.encode({"sub": "cli", "gw": GATEWAY, "exp": 1}, SECRET, algorithm="HS256")
    line = '{"op":"INSERT","table":"t","rowId":"r"}'
    done = run(*words, "--token", bad, text=line)
    assert done.exit_code == 4
    assert done.stderr.startswith("error: the token has expired; get a fresh one")
    assert len(done.stderr.splitlines()) == 1
    assert bad not in done.output


# --- administration -------------------------------------------------------------------------------


def test_sync_rules_are_saved_and_shown_and_every_fault_is_reported(tmp_path: Path) -> None:
    run("schema", "put", "--table", "ruled", "--column", "owner:string")
    rules = {"version": 1, "buckets": [
        {"name": "mine", "tables": ["ruled"],
         "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}  # fmt: skip
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules))

    assert run("rules", "put", str(file)).stdout == "in force, buckets: 1\n"
    assert json.loads(run("rules", "show").stdout) == rules
    file.write_text('{"buckets": [{"name": "", "tables": ["no body"], "filters": []}]}')
    refused = run("rules", "put", str(file))
    assert refused.exit_code == 1
    assert "buckets[0].name" in refused.stderr
    assert "buckets[0].tables[0]" in refused.stderr
    file.write_text('{"buckets": []}')
    assert run("rules", "put", str(file)).exit_code == 0


def test_a_schema_is_saved_and_extended_by_a_column() -> None:
    base = ("schema", "put", "--table", "grown", "--column", "title:string")
    assert run(*base).stdout == "grown: schema version 1 is in force\n"
    assert run(*base, "--column", "done:boolean").stdout.startswith("grown: schema version 2")
    Path("grown.json").write_text('{"table": "grown", "columns": []}')
    done = run("schema", "put", "grown.json")
    assert done.exit_code == 1
    assert "columns: a schema needs 1 to " in done.stderr


def test_flush_reports_the_numbers_of_batches_and_deltas() -> None:
    run("push", "--table", "flushed", "--row", "r", "--set", "a=1")
    assert run("flush").stdout.startswith("flushed ")
    flushed = json.loads(run("flush", "--json").stdout)
    assert int(flushed.pop("watermark")) > 0
    assert flushed == {"flushed": True, "batches": 0, "deltas": 0}


def test_flush_of_one_table_names_the_table() -> None:
    for table in ("alone", "later"):
        run("push", "--table", table, "--row", "r", "--set", "a=1")
    assert run("flush", "--table", "alone").stdout == "flushed 1 delta in 1 batch of alone\n"
    assert json.loads(run("flush", "--table", "alone", "--json").stdout)["batches"] == 0
    assert run("flush").stdout == "flushed 1 delta in 1 batch\n"
    refused = run("flush", "--table", "unheard_of")
    assert (refused.exit_code, "no table unheard_of" in refused.stderr) == (1, True)


def test_flushing_settings_are_saved_and_shown() -> None:
    Path("flushing.json").write_text('{"everyS": 900, "tables": {"alone": 20000}}')
    put = run("flushing", "put", "flushing.json")
    assert put.stdout == (
        "in force: flushed every 900 s, from the threshold of the stack on, tables with a budget: "
        "1, objects in parquet\n"
    )
    assert json.loads(run("flushing", "show").stdout) == {
        "everyS": 900, "bytes": 0, "tables": {"alone": 20000}, "flushFormat": "parquet",
    }  # fmt: skip
    Path("flushing.json").write_text('{"evry": 900}')
    refused = run("flushing", "put", "flushing.json")
    assert (refused.exit_code, "evry: there is no such field" in refused.stderr) == (1, True)
    Path("flushing.json").write_text("{}")
    assert run("flushing", "put", "flushing.json").stdout.startswith(
        "in force: flushed by the schedule"
    )


def test_status_without_a_stack_shows_the_buffer() -> None:
    done = run("status")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"gateway {GATEWAY}: 0 bytes wait to be flushed")
    assert "pass --stack" in done.stderr


def test_status_counts_by_table_with_the_tables_option() -> None:
    run("push", "--table", "counted", "--row", "r", "--set", "a=1")
    assert "byTable" not in json.loads(run("status", "--json").stdout)["buffer"]
    counted = json.loads(run("status", "--tables", "--json").stdout)["buffer"]["byTable"]["counted"]
    assert (counted["unflushedDeltas"], counted["rows"]) == (1, 1)
    assert "counted" in run("status", "--tables").stdout


# --- how it ends ----------------------------------------------------------------------------------


def test_an_unreachable_gateway_is_reported_in_one_line_with_its_url() -> None:
    for words in (("pull",), ("flush",)):
        done = run(*words, "--url", "http://127.0.0.1:9", "--gateway", "g", "--token", "x")
        assert done.exit_code == 3, done.output
        assert "at http://127.0.0.1:9: check --url" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_failures_are_json_with_the_json_option() -> None:
    done = run("flush", "--json", "--url", "http://127.0.0.1:9", "--gateway", "g", "--token", "x")
    assert json.loads(done.stderr)["code"] == "UNREACHABLE"


def test_control_characters_of_values_are_not_printed() -> None:
    nasty = "[red]x[/red]\x1b[31m\n"
    run("push", "--table", "nasty", "--row", "r", "--set", f"a={json.dumps(nasty)}")
    shown = run("pull", "--rows", "--table", "nasty").stdout
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown


def test_output_without_a_terminal_is_neither_cut_nor_wrapped() -> None:
    columns = [word for n in range(60) for word in ("--set", f"column_{n}={'x' * 40}")]
    run("push", "--table", "wide", "--row", "r", *columns)
    shown = run("pull", "--rows", "--table", "wide").stdout
    assert "x" * 40 in shown
    assert len(shown.splitlines()) == 4


def test_a_table_too_wide_for_a_terminal_is_shown_row_by_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(input_output, "PLAIN_WIDTH", 60)
    names = [f"column_{number}" for number in range(20)]
    Output(json_lines=False).table(names, [range(20), range(20)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (1 + len(names))
    assert lines[1] == "column_0   0"


def test_pull_ends_without_an_error_when_its_output_pipe_closes() -> None:
    run("push", "-", text="\n".join(
        json.dumps({"op": "INSERT", "table": "many", "rowId": f"m{n}"}) for n in range(3_000)
    ))  # fmt: skip
    command = f"{sys.executable} -m lakesync.cli pull --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)
    assert done.stderr == ""


def test_the_command_line_imports_no_heavy_modules_at_start() -> None:
    code = (
        "import sys; from lakesync.cli import app\n"
        "heavy = {'boto3', 'botocore', 'duckdb', 'pyarrow', 'pyiceberg', 'httpx', 'jwt',"
        " 'google.protobuf', 'pandas', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [("pull",), ("schema", "list")])
def test_a_malformed_token_is_refused_and_not_printed(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, gateway: LocalGateway
) -> None:
    token = gateway.token("cli")
    monkeypatch.setenv("LAKESYNC_TOKEN", f"{token}\n")

    ended = run(*command)

    assert ended.exit_code == 4
    assert "malformed" in ended.output
    assert token not in ended.output
