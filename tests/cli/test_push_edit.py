"""`lakesync push`: single edits, and files as other programs write them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lakesync.client import Client
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway
from tests.support.command_lines import run
from tests.support.local_gateway import GATEWAY, LocalGateway

pytestmark = pytest.mark.usefixtures("stack_file")


def rows(table: str) -> list[dict[str, object]]:
    printed = run("pull", "--rows", "--table", table, "--json").stdout
    return [json.loads(line) for line in printed.split("\n") if line.startswith("{")]


def final(table: str) -> None:
    """Declare a table in which deletes win."""
    columns = [{"name": "title", "type": "string"}]
    body = {"table": table, "columns": columns, "deleteWins": True}
    Path("schema.json").write_text("\ufeff" + json.dumps(body), "utf-8")
    put = run("schema", "put", "schema.json")
    assert put.exit_code == 0, put.output


def test_insert_creates_a_row_of_a_delete_wins_table() -> None:
    final("orders")
    edit = ("push", "--table", "orders", "--row", "o1", "--set", "title=first")

    made = run(*edit, "--insert")

    assert (made.exit_code, made.stdout) == (0, "1 delta accepted\n")
    assert rows("orders") == [{"table": "orders", "_row_id": "o1", "title": "first"}]
    assert run(*edit).exit_code == 0, "the row exists"


@pytest.mark.parametrize("database", [(), ("--database", "own.db")])
def test_an_update_of_a_missing_row_of_a_delete_wins_table_is_reported(
    database: tuple[str, ...],
) -> None:
    final("bills")

    done = run("push", "--table", "bills", "--row", "b1", "--set", "title=x", *database)

    assert done.exit_code == 1
    assert "no row b1 in bills" in done.stderr
    assert "--insert" in done.stderr
    assert rows("bills") == []


def test_insert_needs_no_columns_and_excludes_delete() -> None:
    assert run("push", "--table", "bare", "--row", "r", "--insert").exit_code == 0
    assert rows("bare") == [{"table": "bare", "_row_id": "r"}]
    assert run("push", "--table", "bare", "--row", "r", "--insert", "--delete").exit_code == 2


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "[1, NaN]", '{"a": 1e999}', "1e999"]
)
def test_a_column_value_that_is_no_json_number_is_refused(text: str) -> None:
    done = run("push", "--table", "numbers", "--row", "r", "--set", f"x={text}")

    assert done.exit_code == 2
    assert "no JSON" in done.stderr
    assert run("push", "--table", "numbers", "--row", "r", "--set", 'x="NaN"').exit_code == 0
    assert rows("numbers")[0]["x"] == "NaN"


def test_nan_in_a_file_of_deltas_is_refused_with_its_line() -> None:
    line = '{"op":"INSERT","table":"bad","rowId":"%s","columns":{"n":%s}}\n'
    Path("deltas.jsonl").write_text(line % ("a", 1) + line % ("b", "NaN"))

    done = run("push", "deltas.jsonl")

    assert done.exit_code == 2
    assert "line 2" in done.stderr
    assert "NaN" in done.stderr


SEPARATORS = ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x7f"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("how", ["file", "standard input"])
def test_unicode_line_separators_do_not_end_a_json_line(mark: str, end: str, how: str) -> None:
    table = f"lines_{len(mark)}_{len(end)}_{how[:4]}"
    texts = [f"a{character}b" for character in SEPARATORS]
    deltas = [
        {"op": "INSERT", "table": table, "rowId": f"r{number}", "columns": {"text": text}}
        for number, text in enumerate(texts)
    ]
    written = [json.dumps(delta, ensure_ascii=False) for delta in deltas]
    # Control characters are escaped in JSON, all others may stand as they are.
    body = (mark + end.join(written) + end).encode()
    Path("deltas.jsonl").write_bytes(body)

    done = run("push", "deltas.jsonl") if how == "file" else run("push", "-", text=body)

    assert done.exit_code == 0, done.output
    assert sorted(str(row["text"]) for row in rows(table)) == sorted(texts)


def test_a_stack_file_with_a_byte_order_mark_is_read(stack_file: Path) -> None:
    stack_file.write_text("\ufeff" + stack_file.read_text("utf-8"), "utf-8")

    assert run("push", "--table", "marked_stack", "--row", "r", "--set", "a=1").exit_code == 0


def test_a_token_with_a_byte_order_mark_is_accepted(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_TOKEN", "\ufeff" + gateway.token("tablet"))

    assert run("push", "--table", "marked", "--row", "r", "--set", "a=1").exit_code == 0


class Elsewhere(BaseHTTPRequestHandler):
    """A web site that is no gateway."""

    def do_GET(self) -> None:
        body = b"<html>Example Domain</html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    "words",
    [
        ("push", "--table", "t", "--row", "r", "--set", "a=1"),
        ("pull",),
        ("status",),
        ("schema", "list"),
    ],
)
def test_a_url_that_is_not_a_gateways_is_reported(
    words: tuple[str, ...], gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_TOKEN", gateway.token("cli"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = run(*words, "--url", url, "--gateway", GATEWAY, "--json")
        server.shutdown()

    assert done.exit_code == 3, done.output
    fault = json.loads(done.stderr.strip().split("\n")[-1])
    assert fault["code"] == "NOT_THE_GATEWAY"
    assert "not a LakeSync gateway's" in fault["error"]
    assert url in fault["error"]


# --- client move ----------------------------------------------------------------------------------


def left(path: Path, gateway: MemoryGateway) -> Client:
    """Open a file with a gateway."""
    return Client(path, client_id="phone", transport=gateway.transport(sub="phone"))


@pytest.mark.law("K36")
@pytest.mark.parametrize("keep", ["edits", "nothing"])
def test_a_client_file_is_moved_to_another_gateway_only_with_yes(tmp_path: Path, keep: str) -> None:
    path = tmp_path / "app.db"
    with MemoryGateway(tmp_path) as old, left(path, old) as client:
        client.insert("todos", "sent", {"title": "sent"}).unwrap()
        client.sync().unwrap()
        client.insert("todos", "mine", {"title": "unsent"}).unwrap()
    move = ["client", "move", str(path), "--keep", keep, "--json"]
    with MemoryGateway(tmp_path) as new:
        for more in ([], ["--yes"]):
            with left(path, new) as client:
                assert isinstance(client.sync(), Err)
            result = run(*move, *more)
            assert result.exit_code == 0, result.output
            answer = json.loads(result.output)
            assert (answer["edits"], answer["moved"]) == (1, bool(more))
        with left(path, new) as client:
            client.sync().unwrap()
        assert list(new.rows("todos")) == (["mine"] if keep == "edits" else [])


def test_client_move_refuses_a_missing_file_and_creates_none(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    result = run("client", "move", str(path))

    assert result.exit_code == 2
    assert not path.exists()
