"""The demo's story on a gateway in this process; the lake is played by a client that replays."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from lakesync.cli.session import call
from lakesync.client import Client, HttpTransport
from tests.support.local_gateway import GATEWAY, SECRET, serve_gateway
from tools.demo import __main__ as command
from tools.demo import actors
from tools.demo.evidence import rows_of_client
from tools.demo.flights import RULES
from tools.demo.screen import Screen
from tools.demo.setting import Setting
from tools.demo.story import Outcome, Story
from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.flights import Rows


class ReplayedLake:
    """What the lake would hold: everything that was flushed, merged."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder
        self._flushed: list[Rows] = []

    def ask(self, path: str, body: object = None, rest: str = "") -> dict[str, Any]:
        token = self._setting.token("demo", "admin")
        address = f"{path}/{self._setting.gateway}{rest}"
        return call(self._setting.url, token, "POST", address, body)

    def flush(self) -> dict[str, Any]:
        done = self.ask("/admin/flush")
        path = self._folder / f"lake-{len(self._flushed)}.db"
        with (
            HttpTransport(
                self._setting.url, GATEWAY, token=lambda: self._setting.token("lake")
            ) as transport,
            Client(path, client_id="lake", transport=transport) as client,
        ):
            client.pull().unwrap()
            self._flushed.append(rows_of_client(client))
        return done

    def wait_until_merged(self, show: Callable[[str], None]) -> float:
        show("0 s")
        return 0.0

    def rows(self, at_ms: int | None = None) -> Rows:
        return self._flushed[-1 if at_ms is None else 0]


def tell(folder: Path, days: int = 2) -> tuple[Outcome, str]:
    """Tell the story of some days; returns what came of it and what was printed."""
    with serve_gateway() as gateway:
        setting = Setting(gateway.url, GATEWAY, SECRET, folder / "clients")
        printed = io.StringIO()
        screen = Screen(Console(file=printed))
        lake = ReplayedLake(setting, folder)
        outcome = Story(setting, lake, screen, days).tell()
        command._show(screen, outcome.verdicts)
        return outcome, printed.getvalue()


def test_every_copy_has_the_rows_that_source_data_and_claims_imply(
    tmp_path: Path,
) -> None:
    outcome, printed = tell(tmp_path)
    assert [(v.holder, v.sentence) for v in outcome.verdicts if not v.right] == []
    feed, airline, airport, gateway, table, past = (v.rows for v in outcome.verdicts)
    assert feed == gateway == table == 1_778
    assert (airline, airport, past) == (583, 618, 1_785)
    assert "of 1,785 flights, the airline (UA, EV) will see 590, the airport (EWR) 655" in printed
    assert "655 flights left the airport's device, 618 came" in printed
    assert "the later stamp won: the airline's on 1 of 2 days" in printed
    assert "\x1b" not in printed


def test_the_comparison_finds_surplus_rows_without_sync_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "buckets", [])
    outcome, _ = tell(tmp_path, days=1)
    wrong = {v.holder: v for v in outcome.verdicts if not v.right}
    assert wrong.keys() == {"airline's SQLite", "airport's SQLite"}
    assert all(verdict.surplus for verdict in wrong.values())


def test_an_interrupted_demo_does_not_wait_for_the_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work_for_ever(_: object, show: Callable[[str], None]) -> None:
        while True:
            show("still at work")
            time.sleep(0.01)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplayedLake, "wait_until_merged", work_for_ever)
    monkeypatch.setattr(actors, "work_as_airline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tell(tmp_path)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "interrupted: `make demo` starts afresh"),
        (LocalStackError("install Java 17: there is none."), 1, "error: install Java 17"),
        (OSError(28, "No space left on device"), 1, "make room, then run `make demo` again."),
    ],
)
def test_a_stopped_demo_prints_one_line_with_the_reason(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(command, "up", stopped)
    assert command.main([]) == code
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert len(said.splitlines()) == 1
