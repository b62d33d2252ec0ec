"""A table is declared by the class that its rows are: a dataclass's fields, or a model's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from lakesync.client import AsyncClient
from lakesync.client.storage.device_tables import column_types
from lakesync.result import Err
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.support.world import World

pytestmark = pytest.mark.law("K35")


@dataclass
class Todo:
    _row_id: str
    title: str | None = None
    done: bool = False
    n: Optional[int] = None  # noqa: UP045 - as apps write it too
    weight: float | None = None
    due: date | None = None
    at: datetime | None = None
    price: Annotated[Decimal, "decimal(9,2)"] | None = None
    photo: bytes | None = None
    tags: list[str] | None = None
    more: dict[str, Any] | None = None
    whatever: Any = None
    state: Literal["open", "shut"] | None = None
    day: Annotated[str, "date"] | None = None
    shown: str = field(default="", init=False)
    kind: ClassVar[str] = "todo"


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
    "more": "json",
    "whatever": "json",
    "state": "string",
    "day": "date",
}


class Visit(BaseModel):
    row_id: str = Field("", alias="_row_id")
    note: str = Field("", alias="Note")
    price: Decimal | None = Field(None, max_digits=9, decimal_places=2)
    tax: Annotated[Decimal, Field(max_digits=5, decimal_places=3)] | None = None
    at: datetime | None = None
    photo: bytes | None = None


def test_the_fields_of_a_class_are_the_columns_of_its_table() -> None:
    assert column_types(Todo) == TYPES
    assert column_types(Visit) == {
        "Note": "string",
        "price": "decimal(9,2)",
        "tax": "decimal(5,3)",
        "at": "timestamp",
        "photo": "bytes",
    }


@pytest.mark.law("K34")
def test_rows_can_be_read_as_the_class_that_declares_their_table(world: World) -> None:
    client = world.client()
    client.declare("todos", Todo, indexes=[["due"]]).unwrap()
    client.declare("todos", Todo).unwrap()
    written: dict[str, Any] = {
        "title": "x", "done": True, "n": 7, "weight": 1.5, "due": date(2026, 5, 17),
        "at": datetime(2026, 5, 17, 8, tzinfo=UTC), "price": Decimal("1.20"), "photo": b"\xff",
        "tags": ["a"], "more": {"b": 1}, "whatever": "y", "state": "open", "day": "2026-05-18",
    }  # fmt: skip
    client.insert("todos", "t1", written).unwrap()

    assert client.query("SELECT * FROM todos", as_=Todo).unwrap() == [Todo("t1", **written)]
    wrong = client.update("todos", "t1", {"day": "tomorrow"})
    assert isinstance(wrong, Err)
    assert wrong.error.code == "SCHEMA_ERROR"

    client.declare("visits", Visit).unwrap()
    visit = {"Note": "oil", "price": Decimal("3.10"), "photo": b"\xff"}
    client.insert("visits", "v1", visit).unwrap()
    assert client.query("SELECT * FROM visits", as_=Visit).unwrap() == [
        Visit.model_validate(visit | {"_row_id": "v1"})
    ]

    async def declared() -> Any:
        async with AsyncClient(
            world.folder / "async.db", client_id="async", transport=world.transport()
        ) as other:
            (await other.declare("todos", Todo)).unwrap()
            (await other.insert("todos", "t1", {"due": date(2026, 5, 17)})).unwrap()
            return (await other.query("SELECT * FROM todos", as_=Todo)).unwrap()

    assert asyncio.run(declared())[0].due == date(2026, 5, 17)


@dataclass
class Unsized:
    price: Decimal


@dataclass
class Complex:
    z: complex


@dataclass
class Either:
    z: int | str


@dataclass
class Numbers:
    z: Literal[1, 2]


@dataclass
class Unknown:
    z: Nowhere  # type: ignore[name-defined]  # noqa: F821 - that is the point


@dataclass
class Misspelled:
    z: Annotated[str, "text"]


REFUSED: list[tuple[Any, str, str]] = [
    (Unsized, "VALIDATION_ERROR", 'Annotated[Decimal, "decimal(9,2)"]'),
    (Complex, "VALIDATION_ERROR", "the field z is of no column's type"),
    (Either, "VALIDATION_ERROR", "the field z is of no column's type"),
    (Numbers, "VALIDATION_ERROR", "the field z is of no column's type"),
    (Unknown, "VALIDATION_ERROR", "its types are unknown"),
    (Misspelled, "SCHEMA_ERROR", "'text' is not a type"),
    (int, "VALIDATION_ERROR", "of int, it is neither"),
    (7, "VALIDATION_ERROR", "columns map names to types"),
]


@pytest.mark.parametrize(("cls", "code", "sentence"), REFUSED)
def test_a_class_that_cannot_declare_a_table_is_refused_with_advice(
    world: World, cls: Any, code: str, sentence: str
) -> None:
    client = world.client()
    result = client.declare("todos", cls)
    assert isinstance(result, Err)
    assert result.error.code == code
    assert sentence in str(result.error)
    assert isinstance(client.query("SELECT * FROM todos"), Err)  # no such table


PROGRAM = """
from dataclasses import dataclass
from datetime import date

from lakesync.client import AsyncClient, Client, SyncSummary


@dataclass
class Todo:
    _row_id: str
    due: date | None = None


def right(client: Client) -> date | None:
    client.declare("todos", Todo, indexes=[["due"]]).unwrap()
    for rows in client.watch("SELECT * FROM todos", as_=Todo):
        return rows[0].due
    return client.query("SELECT * FROM todos", as_=Todo).unwrap()[0].due


async def right_too(client: AsyncClient) -> date | None:
    (await client.declare("todos", Todo)).unwrap()
    (await client.insert("todos", "t1", {"due": None})).unwrap()
    summary: SyncSummary = (await client.sync(mode="push")).unwrap()
    print(summary.pushed.accepted, (await client.actions.run("a", "b")).unwrap().action_id)
    return (await client.query("SELECT * FROM todos", as_=Todo)).unwrap()[0].due
"""
WRONG = """

def wrong(client: Client) -> int:
    client.declare("todos", 7)
    return client.query("SELECT * FROM todos", as_=Todo).unwrap()[0].due


async def wrong_too(client: AsyncClient) -> int:
    await client.insert("todos", 7)
    await client.pull(of="orders")
    await client.actions.run("a", "b", on_result=7)
    return (await client.sync()).unwrap().pushed
"""


@pytest.mark.parametrize(("program", "faults"), [(PROGRAM, 0), (PROGRAM + WRONG, 6)])
def test_mypy_checks_declared_classes_and_rows_read_as_them(
    tmp_path: Path, program: str, faults: int
) -> None:
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"),
            *("--cache-dir", str(tmp_path / "cache"), "program.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "layers" / "lakesync" / "python"), "PATH": ""},
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert (done.returncode == 0) is (faults == 0), done.stdout + done.stderr
    assert len(lines) == faults, done.stdout
