"""Traces: what happens to a client, event by event, and what can be seen of it after each.

They are the stories of 3,000 seeds, of which 500 are kept: first whatever shows something that no
other shows, then the shortest. Chosen once, and written; what they hold is checked by playing them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.vectors.case import Subject, case
from tests.support.vectors.device import Device
from tests.support.vectors.story import THEMES, Story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vectors.case import Case
    from tests.support.vectors.story import Trace

SEEDS: Final = 3_000
CHOSEN: Final = 500
EACH_MIN: Final = 12
"""Traces that show one law, if there are as many."""
RARE: Final = (*["late events", "later events"] * 3, "forgotten")
"""Themes that more stories are of, as what they show is rare."""


class Played(Exception):
    """The client did not do what the trace says."""


def play(trace: Case) -> None:
    """Let everything of a trace happen to the Python client.

    Raises:
        Played: something else was seen of it; names the first event after which.
    """
    given, expected = trace["given"], trace["expect"]["seen"]
    with tempfile.TemporaryDirectory(prefix="lakesync-trace-") as folder:
        device = Device(Path(folder), given)
        try:
            for place, event in enumerate(given["events"]):
                if event["do"] in {"answer", "lost", "foreign"} and not device.asks:
                    raise Played(f"event {place}: it asked for nothing, and is answered")
                seen = json.loads(json.dumps(device.do(event)))
                if seen != expected[place]:
                    raise Played(f"event {place}, {event['do']}: {seen} is not {expected[place]}")
        finally:
            device.close()


def _stories() -> Iterator[Trace]:
    names = [*THEMES, *RARE]
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory(prefix="lakesync-story-") as folder:
            yield Story(seed, names[seed % len(names)], Path(folder)).tell()


def _chosen() -> list[Trace]:
    """Return the traces that show what few show, then the shortest; in the order of their seeds."""
    stories = list(_stories())
    shown = [_shows(trace) for trace in stories]
    by_length = sorted(range(len(stories)), key=lambda place: _length(stories[place]))
    totals = Counter(what for each in shown for what in each)
    laws = {law for trace in stories for law in trace.laws}
    chosen: dict[int, None] = {}
    # The rarest first, laws before all others.
    for what in sorted(totals, key=lambda what: (what not in laws, totals[what], what)):
        showing = [place for place in by_length if what in shown[place]]
        missing = (EACH_MIN if what in laws else 3) - sum(what in shown[place] for place in chosen)
        chosen |= dict.fromkeys(
            [place for place in showing if place not in chosen][: max(missing, 0)]
        )
    rest = [place for place in by_length if place not in chosen]
    return [stories[place] for place in sorted([*chosen, *rest][:CHOSEN])]


def _shows(trace: Trace) -> set[str]:
    """Return what a trace shows, in words that are equal for equal things."""
    things = set(trace.laws)
    last = ""
    for event, seen in zip(trace.events, trace.seen, strict=True):
        what = event["do"]
        if what == "answer":
            body = event.get("body", {})
            what = event.get("error", {}).get("code") or ",".join(sorted(body))
            things.update(each.get("code", each["outcome"]) for each in body.get("results", ()))
            things.update(f"answer {delta['op']}" for delta in body.get("deltas", ()))
        if what == "foreign":
            what += str(event["status"])
        things.update(
            {what, f"{last}>{event['do']}", seen.get("synced", ""), seen.get("refused", "")}
        )
        last = event["do"]
    return things


def _length(trace: Trace) -> int:
    return len(json.dumps([trace.events, trace.seen]))


def _cases() -> Iterator[Case]:
    for trace in _chosen():
        laws = " ".join(sorted(trace.laws, key=lambda law: int(law[1:])))
        yield case(laws, {**trace.given, "events": trace.events}, {"seen": trace.seen})


SUBJECT: Final = Subject(
    "What happens to a client, and what can be seen of it after each event.",
    {
        "clientId": "the client's",
        "tables": "the tables that there are",
        "pageDeltas": "how many deltas it asks for in a page",
        "firstTables": "the tables that it reads first",
        "events": "in order, each with the wall clock: edit, sync, answer, lost, foreign, "
        "broadcast, crash, retry, discard, amend, rebind",
    },
    {
        "seen": "after each event: `request`, what the client asks next; `synced`, how its sync "
        "ended; `refused`, the code of an edit's or a decision's error; `applied`, whether a "
        "broadcast leaves nothing to pull; and, where they changed, `outbox` (all edits that wait "
        "or were refused, in stamp order), `rows` (those that are different; null for one that is "
        "gone) and `conflicts`",
    },
    _cases,
)


def kept(path: Path) -> list[Any]:
    """Return the traces of a file."""
    cases: list[Any] = json.loads(path.read_text("utf-8"))["cases"]
    return cases
