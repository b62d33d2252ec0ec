"""Push and pull: the outbox to the gateway, the gateway's pages to the rows.

Rules of this module
    1. The database's lock is never held while waiting for the network.
    2. A push never moves the read cursor; a page moves it in the transaction that applies the page.
    3. Whatever fails, every edit is either in the outbox or known to be at the gateway. Every
       operation may be repeated, from any thread, after any crash.
    4. A source is a declared destination that is read in place of the gateway. A page of it that
       was applied is not read again: after an error the next pull continues behind it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.client.app_actions import ActionSummary, Sender
from lakesync.client.download import Arrived, Pages
from lakesync.client.storage.device_tables import SourceRows
from lakesync.client.storage.sqlite_file import attempt
from lakesync.client.upload import Pusher, PushSummary
from lakesync.client.waits import never
from lakesync.core.destinations import NAME
from lakesync.core.messages import Pull
from lakesync.core.schema import schemas_to_json
from lakesync.errors import (
    AnotherGateway,
    CursorExpired,
    InternalError,
    InvalidCursor,
    LakeSyncError,
    NotTheGateway,
    OutOfOrder,
    RowDeleted,
    Unreachable,
    ValidationFailed,
)
from lakesync.ports import TellsSchemas
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.client_status import Activity
    from lakesync.client.storage.file import ClientFile, Position
    from lakesync.client.storage.misuse import Mode
    from lakesync.core.messages import PullPage
    from lakesync.ports import Transport

# --- what was done --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullSummary:
    """What a pull did."""

    pages: int = 0
    deltas: int = 0
    """Deltas that arrived, this client's own echoes too."""
    rebuilt: bool = False
    """The gateway's buffer was a different one than before, and everything was read again."""

    def __add__(self, other: PullSummary) -> PullSummary:
        return PullSummary(
            self.pages + other.pages, self.deltas + other.deltas, self.rebuilt or other.rebuilt
        )


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """What a sync did, and what kept a part of it from ending.

    If a part failed, the sync is an ``Err``, and this is the ``done`` of its error.
    """

    pushed: PushSummary = field(default_factory=PushSummary)
    pulled: PullSummary = field(default_factory=PullSummary)
    push_error: LakeSyncError | None = None
    """Why edits must wait; None if none must."""
    pull_error: LakeSyncError | None = None
    """Why pages must wait; None if none must."""
    stopped: bool = False
    """Whether it was stopped before everything was done."""
    acted: ActionSummary = field(default_factory=ActionSummary)
    action_error: LakeSyncError | None = None
    """Why actions must wait; None if none must."""

    @property
    def error(self) -> LakeSyncError | None:
        """The error that keeps the sync from ending; not that of a push that awaits the pull."""
        if isinstance(self.push_error, OutOfOrder | CursorExpired):
            return self.pull_error or self.push_error
        return self.push_error or self.pull_error or self.action_error


# --- pulls from a source --------------------------------------------------------------------------


def checked_source(value: Any) -> str:
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise ValidationFailed(
            "source is the name of a declared destination: a lower-case letter, then letters, "
            f"digits and hyphens, not {value!r:.80}",
            field="source",
        )
    return value


def pull_source(
    file: ClientFile,
    transport: Transport,
    source: str,
    deltas_max: int,
    stopped: Callable[[], bool],
) -> PullSummary:
    """Pull a source to its end, or until stopped; the ``done`` of an error says what was pulled."""
    rows, done = SourceRows(file, source), PullSummary()
    asked = Pull(file.client_id, deltas_max=deltas_max, removes=True, source=source)
    try:
        while not stopped():
            with file.database.lock:
                at = rows.position()
            page, is_anew = _fetch(transport, asked, at)
            with file.database.transaction():
                if rows.position() != at:
                    continue  # another process that shares the file has advanced further
                rows.take(page, is_anew=is_anew)
            done += PullSummary(1, page.count, is_anew or page.resync is not None)
            if not page.has_more:
                break
    except LakeSyncError as error:
        error.done = done
        raise
    return done


def _fetch(transport: Transport, asked: Pull, at: str) -> tuple[PullPage, bool]:
    """Fetch the page behind a place; also tell whether the source is another one than before."""
    try:
        return _checked(transport.pull(replace(asked, snapshot=at)), at), False
    except CursorExpired:
        if not at:
            raise
    return _checked(transport.pull(asked), ""), True


def _checked(page: PullPage, at: str) -> PullPage:
    if not page.snapshot:
        raise NotTheGateway("the answer is no page of a source; nothing was applied")
    if page.has_more and page.snapshot == at:
        raise InternalError(
            "the gateway answered with the place that it was asked from; nothing was applied: "
            "report it with the time of the request"
        )
    return page


# --- push and pull --------------------------------------------------------------------------------


ROUNDS_MAX: Final = 10
"""How often one sync pushes again, while other threads keep editing."""

_PULL_HELPS: Final = (OutOfOrder, CursorExpired, RowDeleted)
_SCHEMAS_OF: Final = "SELECT schemas_of FROM _lakesync_sync"


S = TypeVar("S", PushSummary, PullSummary, ActionSummary)


class Syncer:
    """Moves deltas both ways for one client."""

    def __init__(
        self,
        file: ClientFile,
        transport: Transport,
        page_deltas: int,
        activity: Activity,
        first_tables: tuple[str, ...] = (),
    ) -> None:
        self._file = file
        self._activity = activity
        self._transport = transport
        self._page_deltas = page_deltas
        self._first = first_tables
        self._pages = Pages(file)
        self._pusher = Pusher(file, transport, activity)
        self.hurry = self._pusher.stopped.hurry
        self.actions = Sender(file, transport, activity)
        self._one_at_a_time = threading.RLock()

    def sync(self, stopped: Callable[[], bool], mode: Mode = "full") -> SyncSummary:
        """Push, pull and send actions until nothing waits and nothing is new.

        A failed part does not stop the others; the ``done`` of the raised error reports all of
        them. Without a network, or at another gateway, actions are not
        attempted.
        """
        done = SyncSummary()
        with self.alone():
            for _ in range(ROUNDS_MAX):
                done = self._round(done, stopped, mode)
                # The pull has shown which late deltas had arrived after all; the others can be
                # pushed now. So can entries that waited for a delete, or for another buffer.
                helps = mode == "full" and isinstance(done.push_error, _PULL_HELPS)
                may_go_on = done.push_error is None or helps
                if done.stopped or done.pull_error is not None or not may_go_on:
                    break
                if done.push_error is None and (mode == "pull" or self._is_quiet()):
                    break
        error = done.error
        if error is not None:
            error.done = done
            raise error
        return done

    def _round(self, done: SyncSummary, stopped: Callable[[], bool], mode: Mode) -> SyncSummary:
        """Do each part that the mode allows once; returns that beside what was done before."""
        pushed, pulled, acted = PushSummary(), PullSummary(), ActionSummary()
        push_error = pull_error = action_error = None
        if mode != "pull":
            pushed, push_error = _half(lambda: self.push(stopped), pushed)
        if mode != "push":
            pulled, pull_error = _half(lambda: self.pull(stopped), pulled)
        is_away = isinstance(push_error or pull_error, Unreachable | AnotherGateway)
        if mode != "pull" and not is_away:
            acted, action_error = _half(lambda: self.actions.send(stopped), acted)
        return SyncSummary(
            *(done.pushed + pushed, done.pulled + pulled, push_error, pull_error),
            *(stopped(), done.acted + acted, action_error),
        )

    def push(self, stopped: Callable[[], bool] = never) -> PushSummary:
        """Push until nothing waits; see `Pusher.push`."""
        with self.alone(), self._noted("push"):
            return self._pusher.push(stopped)

    def pull(self, stopped: Callable[[], bool] = never) -> PullSummary:
        """Pull to the end, or until stopped; the ``done`` of an error is as for `sync`."""
        done = PullSummary()
        try:
            with self.alone(), self._noted("pull"), self._activity.downloading():
                with self._file.database.lock:
                    quarantined = self._file.outbox.count_quarantined()
                while not stopped():
                    with self._file.database.lock:
                        at = self._file.position()
                    page, rebuilt = self._fetch(at, quarantined)
                    self._activity.page(page, is_first=at.is_new or bool(at.snapshot))
                    if not self._take(page, at, rebuilt=rebuilt):
                        continue
                    done += PullSummary(1, page.count, rebuilt or at.scope not in {"", page.scope})
                    if not page.has_more:
                        self._follow_schemas(page)
                        self._activity.reached_end(self._file.clock.server_ms())
                        break
        except LakeSyncError as error:
            error.done = done
            raise
        return done

    def pull_source(self, source: str, stopped: Callable[[], bool] = never) -> PullSummary:
        with self.alone():
            return pull_source(self._file, self._transport, source, self._page_deltas, stopped)

    def forget_source(self, source: str) -> None:
        with self.alone(), self._file.database.transaction():
            SourceRows(self._file, source).forget()

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that continues exactly at the file's cursor; see `Hearer.hear`."""
        with self.alone():
            with self._file.database.lock:
                at = self._file.position()
            if not at.snapshot and at.cursor >= page.cursor:
                return True
            if not at.may_apply(page) or not self._take(page, at, rebuilt=False):
                return False
            self._activity.reached_end(self._file.clock.server_ms())
            return self._file.database.read(_SCHEMAS_OF)[1] == [(_schemas_version(page),)]

    def reads_again(self, page: PullPage) -> bool:
        with self._file.database.lock:
            return self._file.position().reads_again(page)

    def next_pull(self) -> Pull:
        with self._file.database.lock:
            return self._file.position().pull(self._file.client_id, 1)

    def is_current(self, page: PullPage) -> bool:
        with self._file.database.lock:
            at = self._file.position()
            schemas = self._file.database.read(_SCHEMAS_OF)[1]
        if page.count or page.has_more or page.snapshot or page.resync is not None:
            return False
        same = (page.epoch, page.scope) == (at.epoch, at.scope)
        if not same or at.snapshot or schemas != [(_schemas_version(page),)]:
            return False
        self._activity.reached_end(self._file.clock.server_ms())
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One push or pull at a time, so that the file stays as it was when the request began."""
        self._file.database.must_be_idle()
        with self._one_at_a_time:
            yield

    @contextlib.contextmanager
    def _noted(self, half: str) -> Iterator[None]:
        try:
            yield
        except LakeSyncError as error:
            self._activity.ended(half, error)
            raise
        self._activity.ended(half, None)

    def _take(self, page: PullPage, at: Position, *, rebuilt: bool) -> bool:
        """Apply a page; False if another process that shares the file has advanced further."""
        with self._file.database.lock:
            if not rebuilt and not self._pages.is_news(page, at):
                return True
        arrived = Arrived(page, self._file.client_id)
        with self._file.database.transaction():
            if self._file.position() != at:
                return False
            if rebuilt:
                # Other rules lose no edit; another buffer may have.
                self._pages.resync.start(is_restored=at.is_before(page) or at.shows_as(page))
            lost = self._pages.apply(page, arrived)
        self._activity.lost(lost)
        return True

    def _follow_schemas(self, page: PullPage) -> None:
        """Fetch the schemas if others apply now; if they cannot be, the next pull tries again."""
        version = _schemas_version(page)
        if self._file.database.read(_SCHEMAS_OF)[1] == [(version,)]:
            return
        text = ""
        if version:
            if not isinstance(self._transport, TellsSchemas):
                return
            try:
                text = json.dumps(schemas_to_json(self._transport.schemas()))
            except LakeSyncError:
                return  # the page is applied, as requested
        with self._file.database.transaction():
            self._file.keep_schemas(text, version)

    def _is_quiet(self) -> bool:
        with self._file.database.lock:
            return self._file.outbox.is_empty()

    def _fetch(self, at: Position, quarantined: int) -> tuple[PullPage, bool]:
        """Fetch the next page, or the first of all if the position is no longer valid.

        The answer also states whether everything must be read again: because the page is of a
        different buffer (not of the same one with its oldest log trimmed), or because other rules
        or claims decided.
        """
        ask, deltas_max = self._transport.pull, self._page_deltas
        # Under load a page may end a little before the newest commit, but not before our own.
        said: dict[str, Any] = {"at_least": self._pusher.last_commit, "quarantined": quarantined}
        with contextlib.suppress(CursorExpired, InvalidCursor):
            page = ask(replace(at.pull(self._file.client_id, deltas_max, self._first), **said))
            # A client that has read nothing may still have pushed data that a restore lost.
            if at.is_followed_by(page):
                return at.checked(page), at.is_before(page)
        start = at.from_the_start
        page = ask(replace(start.pull(self._file.client_id, deltas_max, self._first), **said))
        goes_on = at.is_new or (page.snapshot and at.shows_as(page))
        return start.checked(page), not goes_on or at.is_before(page)


def _schemas_version(page: PullPage) -> str:
    """Return what identifies the schemas: rules and claims also decide which tables are known."""
    return f"{page.schema_version}|{page.epoch}|{page.scope}" if page.schema_version else ""


def _half(half: Callable[[], S], nothing: S) -> tuple[S, LakeSyncError | None]:
    """Run a part of a sync; return what was done, and the reason if it is incomplete."""
    result = attempt(half)
    if isinstance(result, Ok):
        return result.value, None
    return result.error.done or nothing, result.error
