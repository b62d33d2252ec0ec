"""What S3 and catalogues refuse, at any call of a run: once, or from then on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tests.glue.test_merge_agrees_with_core import agree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

STATUS = {"SlowDown": 503, "ExpiredToken": 400, "ExpiredTokenException": 400}


def refused(code: str) -> ClientError:
    """Return what boto3 raises once its own tries are used up."""
    status: Any = {"HTTPStatusCode": STATUS[code]}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": status}, "Call")


class Faults:
    """Calls that fail: one of them, or that one and all behind it."""

    def __init__(self, error: Callable[[], Exception], first: int, *, lasts: bool = False) -> None:
        self._error = error
        self._first = first
        self._lasts = lasts
        self._lock = threading.Lock()
        self.calls = 0

    @property
    def is_met(self) -> bool:
        return self.calls >= self._first

    def put_before(self, patch: pytest.MonkeyPatch, owner: Any, names: Sequence[str]) -> None:
        """Let calls fail that would have been done."""
        for name in names:
            patch.setattr(owner, name, self._failing(getattr(owner, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self.calls += 1
                number = self.calls
            if number == self._first or (self._lasts and number > self._first):
                raise self._error()
            return real(*arguments, **named)

        return call


def is_as_the_core_says(lake: Lake, deltas: Sequence[Delta]) -> None:
    """Compare rows, changes and marks with the deltas, of which each was a commit."""
    assert lake.store.set_aside_reasons == {}, "the fault was no batch's"
    assert lake.pending() == []
    agree(lake, list(deltas))
    changes = [(row["_commit"], row["_delta_id"]) for row in lake.changes()]
    assert changes == [(commit, one.delta_id) for commit, one in enumerate(deltas, 1)]
    assert {mark.commit for mark in lake.marks().values()} == {len(deltas)}
