"""A run's report: lines while it works, and one JSON object at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

_REASON_LINES: Final = 3
"""How much of a message a reason gives; Java's go on for pages."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A table that could not go on."""

    table: str
    batch: str
    reason: str
    set_aside: bool
    """Whether the claim was moved away, since it can never succeed."""


@dataclass(slots=True)
class Report:
    """What a run did, and what it left. Only one thread at a time reports on a table."""

    applied: dict[str, dict[str, int]] = field(default_factory=dict)
    """By table: batches, deltas, and the mark that was reached."""
    waiting: dict[str, int] = field(default_factory=dict)
    """By table: batches behind a gap; the batch before them has not come."""
    overdue: set[str] = field(default_factory=set)
    """Tables of `waiting` that have waited too long."""
    failed: list[Failure] = field(default_factory=list)
    leased_by_another: bool = False
    """Another run is at work on what this one left."""

    def add_applied(self, table: str, *, batches: int, deltas: int, commit: int) -> None:
        """Count what was brought into the lake."""
        counts = self.applied.setdefault(table, {"batches": 0, "deltas": 0, "commit": 0})
        counts["batches"] += batches
        counts["deltas"] += deltas
        counts["commit"] = commit

    def problem(self) -> str:
        """Say in one sentence what somebody must look at; empty if nothing."""
        sentences = [f"{f.table}: {f.reason}" for f in self.failed]
        sentences += [
            f"{table}: the batch before those that wait is missing; flush again, or replay it"
            for table in sorted(self.overdue)
        ]
        return "; ".join(sentences)

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, default=sorted)


def say(event: str, **facts: Any) -> None:
    """Write one structured line of progress."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - Glue's log is stdout


def reason_of(error: BaseException) -> str:
    """Return an error in one line; a Java exception with its class and its root cause.

    Py4J's own error says only that there was an exception.
    """
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        return _reason(type(error).__name__, str(error))
    first = java
    while first.getCause() is not None:
        first = first.getCause()
    reasons = [
        _reason(each.getClass().getName(), each.getMessage() or "") for each in (java, first)
    ]
    return "; caused by ".join(dict.fromkeys(reasons))


def _reason(kind: str, message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return ": ".join([kind, *([" ".join(lines[:_REASON_LINES])] if lines else [])])
