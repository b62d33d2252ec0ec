"""`lakesync gateways export`: all of a gateway as of one stamp, in files that can be put again."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.analysis.connection import UsageFault
from lakesync.cli import export as export_module
from lakesync.cli.commands import gateways
from lakesync.cli.export import MANIFEST, WholeGateway, export
from lakesync.cli.session import must_exist
from lakesync.client import Client
from lakesync.errors import Forbidden, GatewayDeleted, Unavailable
from tests.cli.test_declaring import gateway
from tests.support.builders import at_ms, delete, insert, push, update
from tests.support.checkpoints import Kept
from tests.support.command_lines import run
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.core.messages import Pull
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture

FILTER = {"column": "o", "op": "eq", "value": "x"}
NOBODY = {"version": 1, "buckets": [{"name": "own", "tables": [], "filters": [FILTER]}]}


def rows(folder: Path, table: str) -> dict[str, dict[str, Any]]:
    """Read a table's file."""
    columns: dict[str, dict[str, Any]] = {}
    for line in (folder / f"{table}.ndjson").read_text().split("\n")[:-1]:
        delta = json.loads(line)
        assert delta["table"] == table
        columns.setdefault(delta["rowId"], {}).update(delta["columns"])
    return columns


def exported(kept: Kept, folder: Path, pulls: Any = None) -> dict[str, Any]:
    """Export, and give what the manifest says."""
    exported = export(GATEWAY, kept.buffer, pulls or kept.reader, folder, lambda _: None)
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    assert manifest["stamp"] == str(exported.stamp)
    assert manifest["tables"] == exported.tables
    return manifest


@pytest.mark.law("E4")
def test_an_export_contains_all_rows_whatever_the_sync_rules(tmp_path: Path) -> None:
    kept = Kept()
    kept.push(insert("r1", at=at_ms(1), n=1, big=2**53), insert("r2", at=at_ms(2), t="é"))
    wide = {f"c{n}": "x" * 40_000 for n in range(9)}
    for number, (name, text) in enumerate(wide.items()):
        kept.push(insert("w", at=at_ms(10 + number), table="wide", **{name: text}))
    kept.push(delete("r2", at=at_ms(4)))
    kept.push(update("r1", at=at_ms(5), n=None, o=[1.50, {"a": "\u2028"}]))
    kept.admin.save_rules(GATEWAY, NOBODY)
    manifest = exported(kept, tmp_path / "out")

    assert manifest["tables"] == {"todos": 1, "wide": 1}
    assert rows(tmp_path / "out", "todos") == {
        "r1": {"n": None, "big": 2**53, "o": [1.5, {"a": "\u2028"}]}
    }
    assert rows(tmp_path / "out", "wide")["w"] == wide
    assert json.loads((tmp_path / "out" / "rules.json").read_text())["buckets"] == NOBODY["buckets"]
    assert not list((tmp_path / "out").glob("unfinished*"))


@pytest.mark.law("E4")
def test_an_export_combines_the_checkpoint_and_later_log_entries(tmp_path: Path) -> None:
    kept = Kept()
    kept.push(*(insert(f"r{n}", at=at_ms(n + 1), n=n) for n in range(50)))
    kept.flushed()
    kept.build()
    kept.trim()
    kept.push(update("r3", at=at_ms(900), n=-3), delete("r4", at=at_ms(901)))
    exported(kept, tmp_path)

    assert rows(tmp_path, "todos") == {
        f"r{n}": {"n": -3 if n == 3 else n} for n in range(50) if n != 4
    }


class Interrupted:
    """Pulls that fail after so many pages, while somebody goes on to write."""

    def __init__(self, kept: Kept, pages: int) -> None:
        self._kept = kept
        self._pages = pages
        self.served = 0

    def pull(self, gateway: str, pull: Pull) -> Any:
        if self.served >= self._pages:
            raise Unavailable("away")
        self.served += 1
        # Two rows always change together.
        both = [update(row, at=at_ms(1_000 + self.served), n=self.served) for row in ("a", "z")]
        self._kept.pushes.push(GATEWAY, push(*both))
        return self._kept.reader.pull(gateway, pull)


@pytest.mark.law("E4")
def test_an_interrupted_export_continues_and_is_consistent_at_one_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    kept.push(*(insert(row, at=at_ms(1), n=0) for row in ("a", *map(str, range(900)), "z")))
    kept.flushed()
    kept.trim()
    monkeypatch.setattr(export_module, "Client", partial(Client, page_deltas=100))
    for _ in range(3):
        with pytest.raises(Unavailable):
            exported(kept, tmp_path, Interrupted(kept, 2))
        assert not (tmp_path / MANIFEST).exists()
    last = Interrupted(kept, 100)
    exported(kept, tmp_path, last)
    copied = rows(tmp_path, "todos")

    assert len(copied) == 902
    assert copied["a"] == copied["z"]
    assert last.served < 10, "it went on where it was"


def test_a_second_export_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    kept = Kept()
    kept.push(insert(n=1))
    exported(kept, tmp_path)
    with pytest.raises(UsageFault, match="another folder"):
        exported(kept, tmp_path)


def test_the_transport_of_an_export_refuses_pushes() -> None:
    with pytest.raises(Forbidden):
        WholeGateway(GATEWAY, Kept().reader, print).push(push(insert()))


def test_an_export_of_an_append_table_states_since_when_events_are_included(tmp_path: Path) -> None:
    kept = Kept()
    kept.admin.register_schema(
        GATEWAY, {"table": "events", "append": True, "columns": [{"name": "n", "type": "number"}]}
    )
    kept.push(insert("e1", at=at_ms(1), table="events", n=1))
    kept.flushed()
    kept.trim()
    kept.push(insert("e2", at=at_ms(2), table="events", n=2))
    manifest = exported(kept, tmp_path)

    assert rows(tmp_path, "events") == {"e2": {"n": 2}}
    assert manifest["eventsSince"] == {"events": str(kept.buffer.heads(GATEWAY)["main"].trimmed)}
    assert json.loads((tmp_path / "events.schema.json").read_text())["append"] is True


@pytest.mark.law("E4")
def test_an_export_imported_into_another_gateway_exports_identically(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gateways, "stores", lambda _: (gateway.buffer, gateway.objects))
    monkeypatch.setattr(gateways, "must_exist_in_stack", must_exist)
    done = run("gateways", "export", "g1", "--to", "first", "--json")
    assert json.loads(done.stdout)["tables"] == {"flights": 16}
    for words in (
        ("schema", "put", "first/flights.schema.json"),
        ("rules", "put", "first/rules.json"),
        ("push", "first/flights.ndjson"),
    ):
        assert run(*words, "--gateway", "copy").exit_code == 0
    assert run("gateways", "export", "copy", "--to", "second").exit_code == 0

    for name in ("flights.ndjson", "flights.schema.json", "rules.json"):
        assert (tmp_path / "second" / name).read_text() == (tmp_path / "first" / name).read_text()
    assert run("gateways", "delete", "g1", "--yes").exit_code == 0
    refused = run("gateways", "export", "g1", "--to", "third")
    assert refused.exit_code == 1
    assert GatewayDeleted.ANSWER in refused.stderr
