"""The steps of the demo, in order."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from tools.demo import actors
from tools.demo.evidence import Verdict, compare, rows_of_client
from tools.demo.flights import (
    AIRLINE,
    AIRPORT,
    AIRPORT_MOVED,
    EVERYWHERE,
    RULES,
    SCHEMA,
    load_week,
    seen,
)
from tools.demo.live import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.ports import Transport
    from tools.demo.actors import Actor
    from tools.demo.flights import RuleClaims, Week
    from tools.demo.screen import Screen
    from tools.demo.setting import Setting, TheLake

NAMES: Final = ("feed", "airline", "airport")
FIRST_CLAIMS: Final[Mapping[str, RuleClaims]] = {
    "feed": EVERYWHERE,
    "airline": AIRLINE,
    "airport": AIRPORT,
    "auditor": EVERYWHERE,
}
"""The claims that each client begins with."""


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
        self._open = ExitStack()

    def tell(self) -> Outcome:
        """Do every step; returns the evidence."""
        shutil.rmtree(self._setting.folder, ignore_errors=True)
        self._setting.folder.mkdir(parents=True)
        with self._open:
            week = self._read()
            for name, claims in FIRST_CLAIMS.items():
                self._start(name, claims)
            self._publish(week)
            self._rule(week)
            before = self._edit_offline_while_the_lake_catches_up(week)
            self._move()
            self._sync()
            self._watch()
            self._flush("the edits reach the lake; the Glue job merges them")
            return self._compare(week, before)

    def _start(self, name: str, claims: RuleClaims) -> None:
        transport: Transport = self._open.enter_context(self._setting.transport(name, claims))
        folder, earlier = self._setting.folder, self._actors.get(name)
        actor = (
            actors.restarted(earlier, folder, transport)
            if earlier
            else actors.make_actor(name, folder, transport)
        )
        self._open.callback(actor.client.close)
        self._actors[name] = actor

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

    def _rule(self, week: Week) -> None:
        with self._screen.step("sync rules are tried for each, then put in force") as step:
            airline, airport = (self._would_see(claims) for claims in (AIRLINE, AIRPORT))
            self._lake.ask("/admin/sync-rules", RULES)
            step.result = (
                f"of {len(week.frame):,} flights, the airline (UA, EV) will see {airline:,}, the "
                f"airport (EWR) {airport:,}"
            )
        with self._screen.step("both pull their flights, then lose the network") as step:
            pulled = self._both(lambda actor: actor.client.pull().unwrap().deltas)
            step.result = " and ".join(f"{count:,}" for count in pulled)

    def _would_see(self, claims: RuleClaims) -> int:
        query = urlencode({"dryRun": "true", "as": json.dumps(claims)})
        (tried,) = self._lake.ask("/admin/sync-rules", RULES, f"?{query}")["tables"]
        count: int = tried["seen"]["count"]
        return count

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
            edits, deletes = actors.work_as_airline(airline, week.of(AIRLINE), step.show)
            arrivals = actors.work_as_airport(airport, week.of(AIRPORT), step.show)
            step.result = (
                f"{edits - deletes:,} departures, {deletes} deletes, {arrivals:,} arrivals; "
                f"{week.remarked_by_both(AIRLINE, AIRPORT):,} remarks by both"
            )

    def _lake_with_the_timetable(self, stop: threading.Event) -> tuple[int, float, datetime]:
        def show(_: str) -> None:
            if stop.is_set():
                raise InterruptedError

        started = time.monotonic()
        done = self._lake.flush()
        self._lake.wait_until_merged(show)
        return done["deltas"], time.monotonic() - started, datetime.now(UTC)

    def _move(self) -> None:
        with self._screen.step("offline still, the airport's desk moves from EWR to JFK") as step:
            self._start("airport", AIRPORT_MOVED)
            waiting = len(self._actors["airport"].client.pending().unwrap())
            step.result = f"another claim in its token; {waiting:,} edits wait"

    def _sync(self) -> None:
        before = rows_of_client(self._actors["airport"].client).keys()
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
            after = rows_of_client(self._actors["airport"].client).keys()
            step.result = (
                f"{sum(pushed):,} deltas accepted, {quarantined} refused; {len(before - after):,} "
                f"flights left the airport's device, {len(after - before):,} came"
            )

    def _watch(self) -> None:
        airline, airport = self._actors["airline"].client, self._actors["airport"].client
        if self._setting.socket_url:
            with self._screen.step("over a WebSocket the airline watches the airport edit") as step:
                step.result = watched(airport, airline)

    def _flush(self, sentence: str) -> None:
        with self._screen.step(sentence) as step:
            done = self._lake.flush()
            seconds = self._lake.wait_until_merged(step.show)
            step.result = f"{done['deltas']:,} deltas; the Glue run took {seconds:.0f} s"

    def _compare(self, week: Week, before: datetime) -> Outcome:
        airline, airport = self._actors["airline"], self._actors["airport"]
        with self._screen.step("compare everything with the source data") as step:
            later = actors.later_days(airline, airport, week.days)
            final, published = week.final(AIRLINE, AIRPORT, later), week.published()
            claims_by_name = {**FIRST_CLAIMS, "airport": AIRPORT_MOVED}
            clients = [
                compare(
                    f"{name}'s SQLite",
                    rows_of_client(self._actors[name].client),
                    seen(final, claims_by_name[name]),
                )
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
        pair = [self._actors["airline"], self._actors["airport"]]
        with ThreadPoolExecutor(len(pair)) as threads:
            return list(threads.map(work, pair))
