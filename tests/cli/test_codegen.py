"""`lakesync codegen`: the module that it prints is Python, is typed, and takes rows."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.cli.commands.tables import module_text, typescript_text
from lakesync.client.storage.device_tables import column_types
from lakesync.testing.memory_gateway import MemoryGateway
from tests.support.command_lines import run
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TYPES = {
    "title": "string",
    "done": "boolean",
    "n": "integer",
    "weight": "number",
    "due": "date",
    "at": "timestamp",
    "price": "decimal(9,2)",
    "photo": "bytes",
    "tags": "json",
    "str": "string",
    "date": "date",
    "class": "string",
}
SCHEMA = {"table": "my_todos", "columns": [{"name": k, "type": v} for k, v in TYPES.items()]}


def imported(text: str, folder: Path) -> Any:
    path = folder / "tables_made.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("tables_made", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tables_made"] = module
    spec.loader.exec_module(module)
    return module


def test_generated_classes_declare_tables_and_hold_query_results(tmp_path: Path) -> None:
    tables = imported(module_text("acme", [SCHEMA]), tmp_path)
    with MemoryGateway(tmp_path) as gateway:
        gateway.put_schema(SCHEMA)
        client = gateway.client("phone")
        client.declare("my_todos", tables.MyTodos).unwrap()
        named = {name: kind for name, kind in TYPES.items() if name != "class"}
        assert column_types(tables.MyTodos) == named
        row = {
            "title": "x",
            "done": True,
            "n": 1,
            "weight": 2,
            "due": "2026-05-17",
            "at": "2026-05-17T08:00:00Z",
            "price": "1.20",
            "photo": "aGVsbG8=",
            "tags": ["a"],
            "str": "y",
            "date": "2026-05-18",
        }
        client.insert("my_todos", "t1", row).unwrap()
        assert client.query("SELECT * FROM my_todos", as_=tables.MyTodos).unwrap() == [
            tables.MyTodos(
                _row_id="t1", title="x", done=True, n=1, weight=2.0, due=date(2026, 5, 17),
                at=datetime(2026, 5, 17, 8, tzinfo=UTC), price=Decimal("1.20"), photo=b"hello",
                tags=["a"], str="y", date=date(2026, 5, 18),
            )
        ]  # fmt: skip


def test_the_generated_module_passes_mypy_strict(tmp_path: Path) -> None:
    path = tmp_path / "tables_made.py"
    path.write_text(module_text("acme", [SCHEMA]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout


NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)


@given(
    st.lists(
        st.tuples(NAMES, st.dictionaries(NAMES, st.sampled_from(sorted(set(TYPES.values()))))),
        max_size=4,
        unique_by=lambda table: table[0],
    ),
    NAMES,
)
def test_any_table_and_column_names_give_a_valid_python_module(
    tables: list[tuple[str, dict[str, str]]], gateway: str
) -> None:
    schemas = [
        {"table": name, "columns": [{"name": k, "type": v} for k, v in columns.items()]}
        for name, columns in tables
    ]
    scope: dict[str, Any] = {"__name__": __name__}
    exec(module_text(gateway, schemas), scope)  # noqa: S102 - what the test is about
    assert scope["TABLES"] == dict(tables)


GOLDEN = ROOT / "tests" / "golden" / "codegen.ts"
USED = """
import {{ Client, typed, type DeclaredColumns }} from "{client}/src/index.js";
import {{ TABLES, type MyTodos, type Tables }} from "./tables.js";

export async function used(client: Client): Promise<void> {{
  for (const [table, columns] of Object.entries(TABLES)) {{
    await client.declare(table, columns satisfies DeclaredColumns);
  }}
  const row: MyTodos = {{ title: "x", n: 1n, price: "1.20", photo: new Uint8Array(), tags: ["a"] }};
  const rows = typed<Tables>(client);
  await rows.insert("my_todos", "t1", row);
  const found = await rows.query({{ table: "my_todos", where: {{ n: 1n }}, order: "-due" }});
  const first: bigint | null | undefined = found.ok ? found.value[0]?.n : null;
  // @ts-expect-error - a decimal is text
  await rows.update("my_todos", "t1", {{ price: 1.2, n: first }});
  // @ts-expect-error - no such table
  await rows.delete("others", "t1");
}}
"""


def test_generated_typescript_is_the_golden_one() -> None:
    """If it is meant to change, write the file anew, and look at the difference."""
    assert typescript_text("acme", [SCHEMA]) + "\n" == GOLDEN.read_text("utf-8")


def test_generated_typescript_compiles_and_declares_tables(tmp_path: Path) -> None:
    reason = os.environ.get("LAKESYNC_WITHOUT_NODE")
    if reason:
        pytest.skip(f"without Node.js: {reason}")
    client = ROOT / "clients" / "js"
    odd = {"table": "*/ x", "columns": [{"name": "__proto__", "type": "null"}]}
    (tmp_path / "tables.ts").write_text(typescript_text("*/", [SCHEMA, odd]))
    (tmp_path / "used.ts").write_text(USED.format(client=client))
    options = ["--noEmit", "--strict", "--target", "ES2022", "--module", "NodeNext",
               "--lib", "ES2023,DOM,DOM.Iterable", "--types", "node",
               "--typeRoots", str(client / "node_modules" / "@types")]  # fmt: skip
    compiler = client / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [str(compiler), *options, str(tmp_path / "used.ts")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("stack_file")
def test_codegen_reads_the_schemas_of_the_gateway(tmp_path: Path) -> None:
    empty = run("codegen")
    assert empty.exit_code == 0
    assert "no table has a schema" in empty.stderr
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    assert run("schema", "put", "schema.json").exit_code == 0
    done = run("codegen")
    assert imported(done.stdout, tmp_path).TABLES == {"my_todos": TYPES}
    assert "export interface MyTodos" in run("codegen", "--typescript").stdout
    [answer] = run("codegen", "--json").stdout.splitlines()
    assert json.loads(answer)["table"] == "my_todos"
