"""`lakesync gateways` against a real gateway: it is deleted, and rows are looked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.cli.commands import gateways
from lakesync.cli.erasure import copies
from lakesync.connectors import Storage
from lakesync.connectors.state import DeadLetters
from lakesync.core.clock import VISIBLE_MS_MAX
from lakesync.errors import ValidationFailed
from lakesync.maintenance.checkpoint_upkeep import KEEP_MS, Keeper
from lakesync.maintenance.erasure import QUIET_MS
from lakesync.maintenance.flush import Flusher
from tests.cli.test_declaring import gateway
from tests.support.builders import at_ms, delete, insert, update
from tests.support.checkpoints import Kept
from tests.support.command_lines import run
from tests.support.gateways import GATEWAY as KEPT
from tests.support.lake import Messages
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway


__all__ = ["gateway"]  # the fixture

ROW = json.dumps(
    {"op": "UPDATE", "table": "flights", "rowId": "UA1", "columns": {"carrier": "UA", "delay": 9}}
)


def test_gateways_delete_without_yes_deletes_nothing(gateway: LocalGateway) -> None:
    refused = run("gateways", "delete", GATEWAY)

    assert refused.exit_code == 2
    assert "pass --yes" in refused.stderr
    assert run("push", "-", text=ROW).exit_code == 0


@pytest.mark.law("E1", "E3")
def test_a_deleted_gateway_keeps_no_data_and_refuses_all_requests(gateway: LocalGateway) -> None:
    run("push", "-", text=ROW)
    run("flush")
    done = run("gateways", "delete", GATEWAY, "--yes", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0
    assert (report["gone"], report["proved"]) == (True, False)
    assert set(report["left"].values()) == {0}
    assert "is the proof from" in done.stderr
    assert not gateway.objects.bodies
    for words in (("push", "-"), ("pull",), ("schema", "list")):
        refused = run(*words, text=ROW)
        assert refused.exit_code == 1
        assert "deleted for good" in refused.stderr
    again = json.loads(run("gateways", "delete", GATEWAY, "--yes", "--json").stdout)
    assert set(again["left"].values()) == {0}


@pytest.mark.law("E3")
def test_deletion_with_wait_is_proved_after_the_quiet_period(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        gateway.ahead_ms += int(seconds * 1000)

    monkeypatch.setattr("lakesync.cli.commands.gateways.time.sleep", sleep)
    run("push", "-", text=ROW)
    done = run("gateways", "delete", GATEWAY, "--yes", "--wait", "--json")

    assert json.loads(done.stdout)["proved"] is True
    assert done.stderr == ""
    assert QUIET_MS / 1000 - 60 < slept[0] <= QUIET_MS / 1000 + 2


def test_deleting_an_unknown_gateway_is_refused(gateway: LocalGateway) -> None:
    refused = run("gateways", "delete", "nowhere", "--yes")

    assert refused.exit_code == 1
    assert "there is no gateway" in refused.stderr


# --- find-row -------------------------------------------------------------------------------------


NONE = {"row": 0, "log": 0, "checkpoints": 0, "batches": 0, "connectors": 0}


def counted(kept: Kept, row: str = "r1", table: str = "todos") -> dict[str, int]:
    """Count without a lake."""
    return copies(KEPT, (table, row), kept.buffer, kept.objects, None)


def flush(kept: Kept) -> None:
    """Flush everything, and let it become old."""
    Flusher(kept.buffer, kept.objects, Messages(), ParquetEncoder(), Messages()).flush(KEPT)
    kept.time.now_ms += 10 * VISIBLE_MS_MAX


def test_find_row_counts_rows_in_json_batches() -> None:
    kept = Kept()
    kept.admin.save_flushing(KEPT, {"flushFormat": "json"})
    kept.push(insert("r1", at=at_ms(1), n=1), insert("r2", at=at_ms(2), n=1))
    flush(kept)

    assert counted(kept)["batches"] == 1


def test_find_row_counts_copies_in_every_store() -> None:
    kept = Kept()
    kept.push(insert("r1", at=at_ms(1), n=1), update("r1", at=at_ms(2), n=2))
    kept.push(insert("r1", at=at_ms(3), table="todo", n=1), insert("r11", at=at_ms(4), n=1))
    flush(kept)
    kept.build()

    letters = DeadLetters(Storage(kept.objects, KEPT, "shop"))
    letters.add("todos", "r1", ValidationFailed("no"), insert("r1", at=at_ms(5), n="x"))

    counts = {"row": 1, "log": 2, "checkpoints": 2, "batches": 2, "connectors": 1}
    assert counted(kept) == counts
    assert counted(kept, table="todo") == {name: int(name != "connectors") for name in counts}
    assert counted(kept, row="r2") == counted(kept, table="other") == NONE


def test_find_row_finds_a_deleted_row_until_its_last_copy_is_removed() -> None:
    """The way that docs/operations.md describes, store by store."""
    kept = Kept()
    kept.push(insert("r1", at=at_ms(1), secret="x" * 10_000), insert("r2", at=at_ms(2), n=1))
    flush(kept)
    kept.build()
    kept.push(delete("r1", at=at_ms(3)))
    assert counted(kept) == NONE | {"log": 1, "checkpoints": 1, "batches": 1}

    keeper = Keeper(kept.objects, kept.checkpoints, wall_clock=kept.time.wall_clock)
    for number in range(2):
        kept.push(update("r2", at=at_ms(10 + number), n=number + 2))
        flush(kept)
        kept.build()
    kept.time.now_ms += 2 * KEEP_MS
    keeper.clean(KEPT, kept.epoch())
    assert counted(kept) == NONE | {"log": 1, "batches": 1}
    kept.trim(keeper.covered(KEPT, kept.epoch()))
    assert counted(kept) == NONE | {"batches": 1}
    for key in kept.objects.list_objects("staging/"):
        kept.objects.delete_object(key)

    assert counted(kept) == NONE
    assert counted(kept, row="r2")["row"] == 1


def test_find_row_exits_with_1_when_copies_are_left_and_0_otherwise(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "stores", lambda _: (gateway.buffer, gateway.objects))
    words: Any = ("gateways", "find-row", "g1", "flights")
    there = run(*words, "UA1", "--no-lake", "--json")
    absent = run(*words, "nowhere", "--no-lake")

    assert (there.exit_code, absent.exit_code) == (1, 0)
    assert json.loads(there.stdout)["copies"] == NONE | {"row": 1, "log": 1}
    assert absent.stdout == "flights nowhere: " + ", ".join(f"{k} 0" for k in NONE) + "\n"
