"""Erasure of the files that rows refer to: whatever the rows named goes, and nothing of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.cli.erasure import AttachmentErasure
from lakesync.core.attachments import attachment
from lakesync.core.delta import Op, make_delta
from lakesync.gateway.attachments import object_key
from tests.cli.test_declaring import gateway
from tests.cli.test_erase import Job, connectors, job, slept, taken
from tests.support.builders import at_ms, push
from tests.support.command_lines import run
from tests.support.gateways import pusher
from tests.support.lake import Killed, Objects
from tests.support.lake_tables import FolderLake, in_folder, materialise
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.delta import Delta
    from tests.support.local_gateway import LocalGateway

__all__ = ["connectors", "gateway", "job", "slept", "taken"]  # the fixtures

FILES: Final = [
    attachment(f"{number:032x}", f"{number:064x}", number, "image/png") for number in range(5)
]
# One name is the beginning of another: of 1 byte, and of 10.
FILES.append(attachment(f"{1:032x}", f"{1:064x}", 10, "image/png"))
KEYS: Final = [object_key("g1", file) for file in FILES]
TABLES: Final = ("todos", "users")
ROWS: Final = ("a", "b", "c")

values = st.one_of(
    st.sampled_from(FILES).map(str),
    st.lists(st.sampled_from(FILES), max_size=2).map(lambda files: {"all": [*map(str, files)]}),
    st.just("attachment: none"),
    st.just(None),
)
edits = st.lists(
    st.tuples(
        st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE]),
        st.sampled_from(TABLES),
        st.sampled_from(ROWS),
        st.dictionaries(st.sampled_from(["photo", "album"]), values, min_size=1, max_size=2),
    ),
    max_size=12,
)


def named_in(delta: Delta) -> set[str]:
    """Return the keys of the files that a delta refers to, read in the most obvious way."""
    text = " ".join(value.decode() for _, value in delta.columns)
    return {key for key, file in zip(KEYS, FILES, strict=True) if f'"{file}"' in text}


class Gateway:
    """A gateway with edits, and all files."""

    def __init__(self, edited: list[tuple[Op, str, str, dict[str, Any]]]) -> None:
        self.buffer, self.objects = MemoryBuffer(), Objects()
        self.deltas: list[Delta] = []
        for op, table, row, columns in edited:
            self.write(op, table, row, {} if op is Op.DELETE else columns)
        for key in KEYS:
            self.objects.put_object(key, b"bytes", "image/png")

    def write(self, op: Op, table: str, row: str, columns: dict[str, Any]) -> None:
        stamp = at_ms(len(self.deltas) + 1)
        delta = make_delta(op, table, row, columns, client_id="c1", hlc=stamp)
        self.deltas.append(delta)
        assert pusher(self.buffer).push("g1", push(delta)).accepted == 1

    def steps(self, rows: set[str]) -> tuple[AttachmentErasure, list[Callable[[], object]]]:
        """Return an erasure of rows of the first table, and its steps in order."""
        keys = [("todos", row) for row in sorted(rows)]
        files = AttachmentErasure(self.buffer, self.objects, "g1", keys)

        def delete() -> None:
            for table, row in keys:
                self.write(Op.DELETE, table, row, {})

        steps: list[Callable[[], object]] = [
            files.look_into_rows,
            delete,
            files.look_into_past,
            files.remove,
            files.remove,
        ]
        return files, steps

    def others(self, rows: set[str]) -> set[str]:
        """Return the files that the other rows refer to, as they are."""
        latest: dict[tuple[str, str], dict[str, set[str]]] = {}
        for delta in self.deltas:
            key = (delta.table, delta.row_id)
            if delta.op is Op.DELETE:
                latest.pop(key, None)
                continue
            row = latest.setdefault(key, {})
            for column in delta.columns:
                row[column[0]] = named_in(delta._replace(columns=(column,)))
        mine = {("todos", row) for row in rows}
        return set().union(
            *(files for key, row in latest.items() if key not in mine for files in row.values())
        )


@pytest.mark.law("E11")
@settings(deadline=None)
@given(
    edited=edits,
    rows=st.sets(st.sampled_from(ROWS), min_size=1),
    died=st.integers(0, 5),
    removals=st.integers(0, 3),
)
def test_repeated_erasure_removes_exactly_the_attachments_that_no_other_row_refers_to(
    edited: list[tuple[Op, str, str, dict[str, Any]]], rows: set[str], died: int, removals: int
) -> None:
    """Killed behind any step, and between any two removals; then repeated."""
    edited_gateway = Gateway(edited)
    _, steps = edited_gateway.steps(rows)
    real, left = edited_gateway.objects.delete_object, removals

    def delete_object(key: str) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        real(key)

    edited_gateway.objects.delete_object = delete_object  # type: ignore[method-assign]
    try:
        for step in steps[:died]:
            step()
    except Killed:
        pass
    edited_gateway.objects.delete_object = real  # type: ignore[method-assign]

    files, steps = edited_gateway.steps(rows)
    for step in steps:
        step()

    named = set().union(
        *(named_in(delta) for delta in edited_gateway.deltas
          if delta.table == "todos" and delta.row_id in rows)
    )  # fmt: skip
    others = edited_gateway.others(rows)
    assert edited_gateway.objects.list_objects("") == sorted({*KEYS} - (named - others))
    assert files.left() == 0
    assert {f"attachments/g1/{name}" for name in files.shared} <= named & others


# --- as the command does it -----------------------------------------------------------------------

PHOTOS: Final = ("gateways", "erase", GATEWAY, "photos", "--yes")


@pytest.fixture
def lake(gateway: LocalGateway, job: Job, monkeypatch: pytest.MonkeyPatch) -> FolderLake:
    """A lake in a folder; nothing is in it yet."""
    assert job.requests == []
    return in_folder(Path("lake").absolute(), gateway, monkeypatch)


def edit(row: str, *names: int, table: str = "photos") -> None:
    references = json.dumps([str(FILES[number]) for number in names])
    done = run("push", "--table", table, "--row", row, "--set", f"files={references}")
    assert done.exit_code == 0, done.output


@pytest.fixture
def stored(gateway: LocalGateway) -> Callable[[], list[int]]:
    """Have all files there; returns what tells which are."""
    keys = [object_key(GATEWAY, file) for file in FILES]
    for key in keys:
        gateway.objects.put_object(key, b"bytes", "image/png")
    return lambda: [number for number, key in enumerate(keys) if key in gateway.objects.bodies]


@pytest.mark.law("E11")
@pytest.mark.usefixtures("slept")
def test_erasing_a_row_removes_and_lists_its_attachments_and_keeps_shared_ones(
    stored: Callable[[], list[int]],
) -> None:
    edit("p1", 0, 1)
    edit("p1", 2, 3)
    edit("p2", 3)

    done = run(*PHOTOS, "p1", "--no-lake", "--json")

    assert done.exit_code == 0, done.stderr
    assert stored() == [3, 4, 5]
    report = json.loads(done.stdout)
    assert report["left"]["attachments"] == 0
    assert report["attachments"] == {
        "removed": sorted(FILES[number].file_name for number in (0, 1, 2)),
        "shared": [FILES[3].file_name],
    }
    assert f"attachments/{GATEWAY}/{FILES[2].file_name}" in done.stderr
    last = run(*PHOTOS, "p2", "--no-lake")
    assert last.exit_code == 0
    assert stored() == [4, 5]


@pytest.mark.law("E11")
@pytest.mark.usefixtures("slept")
def test_an_attachment_that_only_the_lakes_history_refers_to_is_removed(
    gateway: LocalGateway, lake: FolderLake, stored: Callable[[], list[int]]
) -> None:
    edit("p1", 0)
    edit("p2", 4)
    materialise(lake, gateway.buffer, {"files": "json"}, table="photos")
    assert run(*PHOTOS, "p2", "--no-lake").exit_code == 0, "the log goes with it"
    assert stored() == [0, 1, 2, 3, 5]
    gateway.objects.put_object(object_key(GATEWAY, FILES[4]), b"bytes", "image/png")

    done = run(*PHOTOS, "p2", "--json")

    assert done.exit_code == 0, done.stderr
    assert stored() == [0, 1, 2, 3, 5]
    assert json.loads(done.stdout)["attachments"]["removed"] == [FILES[4].file_name]


@pytest.mark.law("E11")
@pytest.mark.usefixtures("slept", "lake")
def test_an_attachment_uploaded_during_the_erasure_of_its_row_is_removed(
    gateway: LocalGateway, stored: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("p1", 0)
    real = Job.__call__

    def arrives(self: Job, *arguments: Any) -> Any:
        gateway.objects.put_object(object_key(GATEWAY, FILES[0]), b"bytes", "image/png")
        return real(self, *arguments)

    monkeypatch.setattr(Job, "__call__", arrives)
    assert run(*PHOTOS, "p1").exit_code == 0

    assert stored() == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("slept")
def test_no_attachment_is_removed_when_sync_rules_prevent_deleting_the_row(
    stored: Callable[[], list[int]],
) -> None:
    edit("p1", 0)
    hidden = {"column": "team", "op": "eq", "value": "jwt:team"}
    rules = {"version": 1, "buckets": [{"name": "b", "tables": ["photos"], "filters": [hidden]}]}
    Path("hidden.json").write_text(json.dumps(rules))
    assert run("rules", "put", "hidden.json").exit_code == 0

    refused = run(*PHOTOS, "p1")

    assert refused.exit_code == 2
    assert "could not be deleted" in refused.stderr
    assert stored() == [0, 1, 2, 3, 4, 5]
