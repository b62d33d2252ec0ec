"""Vectors: what any client, in any language, must compute, written to ``tests/golden/vectors``.

Each file is one subject. A case gives what is known and what must follow, as JSON: stamps are
decimal strings, bytes are base64, and clock and chance are given. They show what can be observed,
never how it is computed. ``python -m tests.support.vectors`` writes them anew; a test fails where
they differ from what the library computes now.

The form of a file::

    {"about": …, "given": {field: meaning}, "expect": {field: meaning}, "cases": [
      {"laws": ["M4"], "given": {…}, "expect": {…}}, …]}

How to use them: ``docs/clients/writing-a-client.md``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.vectors import clock, identity, merge, traces, typed, visibility, wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.vectors.case import Subject

FOLDER: Final = Path(__file__).parents[2] / "golden" / "vectors"
SUBJECTS: Final[Mapping[str, Subject]] = {
    "clock": clock.SUBJECT,
    "canonical": identity.CANONICAL,
    "ids": identity.IDS,
    "merge": merge.SUBJECT,
    "values": typed.SUBJECT,
    "wire": wire.SUBJECT,
    "visibility": visibility.SUBJECT,
    "traces": traces.SUBJECT,
}


def written(subject: Subject) -> str:
    """Return a subject's file: one case in each line, so that a difference shows its case."""
    head = {"about": subject.about, "given": subject.given, "expect": subject.expect}
    cases = ",\n".join(f"  {_line(case)}" for case in subject.cases())
    return f'{_line(head)[:-1]}, "cases": [\n{cases}\n]}}\n'


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file with what it must hold."""
    for name, subject in SUBJECTS.items():
        yield FOLDER / f"{name}.json", written(subject)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=False)
