"""The steps of the demo, in order."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.cli.tokens import sign
from lakesync.client import HttpTransport
from tools.demo import actors
from tools.demo.evidence import Verdict, compare, rows_of_client
from tools.demo.flights import SCHEMA, load_week

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.ports import Transport
    from tools.demo.actors import Actor
    from tools.demo.flights import Rows, Week
    from tools.demo.screen import Screen

TOKEN_S: Final = 3_600
NAMES: Final = ("feed", "airline", "airport")


@dataclass(frozen=True)
class Setting:
    """Where the story happens."""

    url: str
    gateway: str
    secret: str
    folder: Path
    """For the clients' files; emptied first."""

    def token(self, client: str, role: str = "client") -> str:
        """Sign a token for an hour."""
        claims = {"sub": client, "gw": self.gateway, "role": role}
        return sign(claims, TOKEN_S, self.secret, int(time.time()))

    def transport(self, client: str) -> HttpTransport:
        """Give a client's way to the gateway."""
        return HttpTransport(self.url, self.gateway, token=lambda: self.token(client))


class TheLake(Protocol):
    """What the story needs of the lake: `tools.demo.lake.DemoLake`, or a player of it in tests."""

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        """Call an administrative route of the gateway."""
        ...

    def flush(self) -> dict[str, Any]:
        """Write what the buffer holds to S3 and announce it."""
        ...

    def wait_until_merged(self, show: Callable[[str], None]) -> float:
        """Return once the tables hold what was announced; gives the seconds."""
        ...

    def rows(self, at_ms: int | None = None) -> Rows:
        """Give the table's rows, as they are or as they were."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What the story came to."""

    verdicts: tuple[Verdict, ...]
    before: datetime
    """A moment after the timetable was in the lake and before the arrivals were."""

    @property
    def right(self) -> bool:
        """Whether every holder has what it must have."""
        return all(verdict.right for verdict in self.verdicts)


class Story:
    """One run of the demo on one gateway."""

    def __init__(self, setting: Setting, lake: TheLake, screen: Screen, days: int = 7) -> None:
        self._setting = setting
        self._lake = lake
        self._screen = screen
        self._days = days
        self._actors: dict[str, Actor] = {}

    def tell(self) -> Outcome:
        """Do every step; gives the evidence."""
        shutil.rmtree(self._setting.folder, ignore_errors=True)
        self._setting.folder.mkdir(parents=True)
        with ExitStack() as stack:
            week = self._read()
            for name in (*NAMES, "auditor"):
                transport: Transport = stack.enter_context(self._setting.transport(name))
                actor = actors.make_actor(name, self._setting.folder, transport)
                stack.callback(actor.client.close)
                self._actors[name] = actor
            self._publish(week)
            before = self._edit_offline_while_the_lake_catches_up(week)
            self._sync()
            self._flush("the edits reach the lake; the Glue job merges them")
            return self._judge(week, before)

    # --- the steps --------------------------------------------------------------------------------

    def _read(self) -> Week:
        with self._screen.step("read the flights that left New York in a week of 2013") as step:
            week = load_week(self._days)
            step.result = f"{len(week.frame):,} flights in {len(week.days)} days"
        return week

    def _publish(self, week: Week) -> None:
        feed = self._actors["feed"]
        with self._screen.step("register the schema, typed columns in the lake") as step:
            self._lake.ask("/admin/schema", SCHEMA)
            step.result = f"{len(week.published().columns)} columns"
        with self._screen.step("the feed, its clock 5 min slow, publishes the timetable") as step:
            count = actors.publish(feed, week)
            step.show(f"{count:,} rows inserted, pushing")
            pushed = feed.client.push().unwrap()
            step.result = f"{pushed.accepted:,} deltas accepted"
        with self._screen.step(
            "the airline and the airport pull it, then lose the network"
        ) as step:
            pulled = self._both(lambda actor: actor.client.pull().unwrap().deltas)
            step.result = f"{min(pulled):,} deltas each"

    def _edit_offline_while_the_lake_catches_up(self, week: Week) -> datetime:
        airline, airport = self._actors["airline"], self._actors["airport"]
        stop = threading.Event()
        with ThreadPoolExecutor(1) as aside:
            merged = aside.submit(self._lake_with_the_timetable, stop)
            try:
                self._edit_offline(week, airline, airport)
                with self._screen.step("meanwhile the timetable reached the lake") as step:
                    while not merged.done():
                        step.show("the Glue job is at work")
                        time.sleep(0.2)
                    deltas, seconds, before = merged.result()
                    step.result = f"{deltas:,} deltas; flush and Glue run took {seconds:.0f} s"
            except BaseException:
                stop.set()  # or Ctrl-C would wait for the Glue run
                raise
        return before

    def _edit_offline(self, week: Week, airline: Actor, airport: Actor) -> None:
        sentence = "offline, the airline (4 min slow) and the airport (3 s fast) edit the same rows"
        with self._screen.step(sentence) as step:
            edits, deletes = actors.work_as_airline(airline, week, step.show)
            arrivals = actors.work_as_airport(airport, week, step.show)
            step.result = (
                f"{edits - deletes:,} departures, {deletes} deletes, {arrivals:,} arrivals; "
                f"{week.remarked_by_both():,} remarks by both"
            )

    def _lake_with_the_timetable(self, stop: threading.Event) -> tuple[int, float, datetime]:
        def show(_: str) -> None:
            if stop.is_set():
                raise InterruptedError

        started = time.monotonic()
        done = self._lake.flush()
        self._lake.wait_until_merged(show)
        return done["deltas"], time.monotonic() - started, datetime.now(UTC)

    def _sync(self) -> None:
        with self._screen.step(
            "the network is back: both sync at once, then everyone pulls"
        ) as step:
            pushed = self._both(lambda actor: actor.client.sync().unwrap().pushed.accepted)
            for actor in self._actors.values():
                step.show(f"{actor.name} pulls")
                actor.client.sync().unwrap()
            quarantined = sum(
                len(actor.client.quarantined().unwrap()) for actor in self._actors.values()
            )
            step.result = f"{sum(pushed):,} deltas accepted, {quarantined} refused"

    def _flush(self, sentence: str) -> None:
        with self._screen.step(sentence) as step:
            done = self._lake.flush()
            seconds = self._lake.wait_until_merged(step.show)
            step.result = f"{done['deltas']:,} deltas; the Glue run took {seconds:.0f} s"

    def _judge(self, week: Week, before: datetime) -> Outcome:
        airline, airport = self._actors["airline"], self._actors["airport"]
        with self._screen.step("compare everything with the source data") as step:
            later = actors.later_days(airline, airport, week.days)
            final, published = week.final(later), week.published()
            clients = [
                compare(f"{name}'s SQLite", rows_of_client(self._actors[name].client), final)
                for name in NAMES
            ]
            replayed = rows_of_client(self._actors["auditor"].client)
            gateway = compare("the gateway, replayed by a new client", replayed, final)
            table = compare("the Iceberg table", self._lake.rows(), final)
            at_ms = round(before.timestamp() * 1000)
            past = compare("the table as it was before", self._lake.rows(at_ms), published)
            verdicts = (*clients, gateway, table, past)
            values = sum(verdict.rows for verdict in verdicts) * len(final.columns)
            step.result = (
                f"{values:,} values; of remarks by both the later stamp won: the airline's on "
                f"{len(later)} of {len(week.days)} days"
            )
        return Outcome(verdicts, before)

    # --- two at once ------------------------------------------------------------------------------

    def _both(self, work: Callable[[Actor], int]) -> list[int]:
        """Have the airline and the airport do the same at the same time."""
        pair = [self._actors["airline"], self._actors["airport"]]
        with ThreadPoolExecutor(len(pair)) as threads:
            return list(threads.map(work, pair))
