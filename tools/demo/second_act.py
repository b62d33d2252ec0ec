"""The second act: PostgreSQL is captured while a client edits; MySQL and the lake follow."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import Client
from tools.demo.databases import CAPTURED_SCHEMA, REMARK, SOURCE_COLUMNS, Operations, Reports
from tools.demo.evidence import compare, rows_of_client
from tools.demo.flights import EVERYWHERE, TABLE, load_week
from tools.local_stack.databases import start_mariadb, start_postgres
from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.analysis.connection import Aws
    from tools.demo.evidence import Verdict
    from tools.demo.flights import Week
    from tools.demo.lake import DemoLake
    from tools.demo.screen import Screen, Step
    from tools.demo.setting import Setting

SOURCE: Final = "operations"
DESTINATION: Final = "reports"
_ARRIVES_S_MAX: Final = 240
_LOOKS_EVERY_S: Final = 0.5
_SELDOM_MINUTES: Final = 1_440
"""The demo asks for its polls: the schedule need not."""


class SecondAct:
    """One run of the second act on a gateway of its own."""

    def __init__(
        self, setting: Setting, lake: DemoLake, aws: Aws, screen: Screen, days: int = 1
    ) -> None:
        self._setting = setting
        self._lake = lake
        self._aws = aws
        self._screen = screen
        self._days = days
        self._open = ExitStack()

    def tell(self) -> tuple[Verdict, ...]:
        """Do every step; returns the evidence."""
        shutil.rmtree(self._setting.folder, ignore_errors=True)
        self._setting.folder.mkdir(parents=True)
        with self._open:
            week = load_week(self._days)
            operations, reports = self._databases(week)
            self._declare(operations, reports)
            dispatcher = self._client("dispatcher")
            self._poll("the first poll reads the table as it is", dispatcher)
            remarks = self._edit(week, operations, dispatcher)
            self._poll("back online: the changes are polled, the client syncs", dispatcher)
            self._follow(reports, expected=len(week.departed(remarks)))
            return self._compare(week, remarks, operations, reports, dispatcher)

    # --- the steps --------------------------------------------------------------------------------

    def _databases(self, week: Week) -> tuple[Operations, Reports]:
        with self._screen.step(
            "an airline's PostgreSQL has the timetable, a MySQL nothing"
        ) as step:
            operations = Operations(self._open.enter_context(start_postgres()))
            reports = Reports(self._open.enter_context(start_mariadb()))
            operations.publish(week.timetable())
            step.result = f"{len(week.frame):,} flights"
        return operations, reports

    def _declare(self, operations: Operations, reports: Reports) -> None:
        with self._screen.step("declare: capture PostgreSQL's changes, deliver to MySQL") as step:
            self._lake.ask("/admin/schema", CAPTURED_SCHEMA)
            self._open.callback(self._remove_secret, self._keep_secret(reports.url))
            declared = {"kind": "mysql", "secret": DESTINATION, "tables": [TABLE]}
            self._lake.ask("/admin/destinations", declared, f"/{DESTINATION}")
            self._open.callback(self._remove, "destinations", DESTINATION)
            registered = {
                "type": "postgres", "name": SOURCE, "configuration": operations.connector(),
                "everyMinutes": _SELDOM_MINUTES,
            }  # fmt: skip
            self._lake.ask("/admin/connectors", registered)
            self._open.callback(self._remove, "connectors", SOURCE)
            step.result = f"connector {SOURCE}, destination {DESTINATION}"

    def _poll(self, sentence: str, dispatcher: Client) -> None:
        with self._screen.step(sentence) as step:
            before = self._shown("connectors", f"/{SOURCE}")
            self._lake.ask("/admin/connectors", {"do": "run"}, f"/{SOURCE}")
            shown = _until(
                lambda: self._shown("connectors", f"/{SOURCE}"),
                lambda shown: shown["polls"] > before["polls"] and not shown["isReading"],
                step,
                "polled",
            )
            if shown["deadLetterCount"] or "lastError" in shown:
                reasons = [one["reason"] for one in shown.get("deadLetters", ())]
                raise LocalStackError(f"not all rows came: {shown.get('lastError', reasons[:1])}")
            synced = dispatcher.sync().unwrap()
            step.result = (
                f"{shown['rows'] - before['rows']:,} rows came, "
                f"{synced.pushed.accepted:,} edits went, {synced.pulled.deltas:,} deltas pulled"
            )

    def _edit(self, week: Week, operations: Operations, dispatcher: Client) -> dict[str, str]:
        sentence = "PostgreSQL's users book departures, while a client remarks gates offline"
        with self._screen.step(sentence) as step:
            booked = deleted = 0
            remarks: dict[str, str] = {}
            for day in week.days:
                departures, cancelled = week.departures(day), week.cancelled(day)
                operations.book(departures, cancelled)
                booked, deleted = booked + len(departures), deleted + len(cancelled)
                for gate, row_id in enumerate(sorted(departures)[::3]):
                    remarks[row_id] = f"gate {gate}"
                    dispatcher.update(TABLE, row_id, {REMARK: remarks[row_id]}).unwrap()
            step.result = f"{booked:,} updates, {deleted} deletes, {len(remarks):,} remarks"
        return remarks

    def _follow(self, reports: Reports, expected: int) -> None:
        with self._screen.step("the lake and MySQL follow") as step:
            done = self._lake.flush()
            seconds = self._lake.wait_until_merged(step.show)
            _until(
                lambda: self._shown("destinations")["destinations"][0],
                lambda shown: shown["state"] == "current" and not shown["waiting"],
                step,
                "MySQL is filled",
            )
            _until(reports.rows, lambda rows: len(rows) == expected, step, "MySQL has all rows")
            step.result = f"{done['deltas']:,} deltas; the lake took {seconds:.0f} s"

    def _compare(
        self,
        week: Week,
        remarks: dict[str, str],
        operations: Operations,
        reports: Reports,
        dispatcher: Client,
    ) -> tuple[Verdict, ...]:
        with self._screen.step("compare everything with the source data") as step:
            wanted = week.departed(remarks)
            replayed = self._client("archivist")
            replayed.sync().unwrap()
            verdicts = (
                compare("PostgreSQL", operations.rows(), wanted[list(SOURCE_COLUMNS)]),
                compare("the client's SQLite", rows_of_client(dispatcher), wanted),
                compare("the gateway, replayed", rows_of_client(replayed), wanted),
                compare("the Iceberg table", self._lake.rows(), wanted),
                compare("MySQL", reports.rows(), wanted),
            )
            values = sum(verdict.rows for verdict in verdicts) * len(wanted.columns)
            step.result = f"{values:,} values"
        return verdicts

    # --- clients and administration ---------------------------------------------------------------

    def _client(self, name: str) -> Client:
        transport = self._open.enter_context(self._setting.transport(name, EVERYWHERE))
        client = Client(
            self._setting.folder / f"{name}.db",
            client_id=name,
            transport=transport,
            durability="NORMAL",
        )
        self._open.callback(client.close)
        return client

    def _shown(self, kind: str, rest: str = "") -> dict[str, Any]:
        return self._lake.ask(f"/admin/{kind}", rest=rest, method="GET")

    def _remove(self, kind: str, name: str) -> None:
        self._lake.ask(f"/admin/{kind}", rest=f"/{name}", method="DELETE")

    def _keep_secret(self, url: str) -> str:
        prefix = self._aws.output("DestinationSecretPrefix")
        name = f"{prefix}{self._setting.gateway}/{DESTINATION}"
        self._aws.client("secretsmanager").create_secret(Name=name, SecretString=url)
        return name

    def _remove_secret(self, name: str) -> None:
        self._aws.client("secretsmanager").delete_secret(
            SecretId=name, ForceDeleteWithoutRecovery=True
        )


def _until(read: Callable[[], Any], is_so: Callable[[Any], bool], step: Step, sentence: str) -> Any:
    """Ask until it is so.

    Raises:
        LocalStackError: it is not, after four minutes.
    """
    started = time.monotonic()
    while not is_so(answer := read()):
        waited = time.monotonic() - started
        if waited > _ARRIVES_S_MAX:
            raise LocalStackError(f"not after {waited:.0f} s: {sentence}. `lakesync doctor` helps.")
        step.show(f"{waited:.0f} s")
        time.sleep(_LOOKS_EVERY_S)
    return answer
