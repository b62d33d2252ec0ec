"""What truly happened: every commit as the buffer took it, every page as it was handed out.

Watches the buffer itself, below everything that is being tested, and holds each commit and each
page against all that was before. What is checked at the end is in `tests.simulation.checkers`.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right, insort
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp_ms
from lakesync.core.delta import Op
from lakesync.core.messages import begins, log_behind
from lakesync.errors import Retry
from lakesync.gateway.filtered_reads import Reads, resume_token_of
from lakesync.wire.records import decode_records
from tests.simulation.model import NOTHING, Key, Row, at_least, deletes_win, row_of
from tests.simulation.oracle import Eyes, Moments, may_be_sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.ports import Commit
    from tests.simulation.rulings import Rulings


MADE_AGAIN_WITHIN: Final = 8
"""How far above its delete a row is stamped that is sent whole again, at most."""


class Violation(BaseException):
    """A promise was broken. ``promise`` names which.

    No `Exception`: what is simulated catches those, to go on, and would go on over this one too.
    """

    def __init__(self, promise: str, message: str) -> None:
        super().__init__(f"{promise}: {message}")
        self.promise = promise


@contextmanager
def bugs_are_raised() -> Iterator[None]:
    """Make a finding of whatever is raised: a sync loop would report it, and try again."""
    try:
        yield
    except Exception as error:
        raise Violation(type(error).__name__, traceback.format_exc()) from error


class Began(NamedTuple):
    """What was true when a request for a page began."""

    settled: int
    """The last commit that was visible as a whole."""
    whole: int
    """Up to here every commit was."""
    rules: int
    """The place of the rules in force."""
    trimmed: int
    epoch: str
    settled_before: int = 0
    """What ``settled`` was `RAISED_EVERY_MS` before."""
    is_quiet: bool = False
    """No more than one commit happened in that time, by the clock of who answers."""
    seen: int = 0
    """What ``settled`` was when who answers last read the heads, some such time ago."""
    restores: int = 0
    """How often the buffer had been restored."""


class Logged(NamedTuple):
    """One lane's part of one commit."""

    stamp: int
    lane: str
    records: bytes
    deltas: int


class History:
    """All commits of the gateway."""

    def __init__(self, appends: Callable[[str], bool], rulings: Rulings) -> None:
        self.appends = appends
        self.rulings = rulings
        self.log: list[Logged] = []
        self.deltas: dict[str, Delta] = {}
        """Every logged delta by its id."""
        self.commit_of: dict[str, int] = {}
        """The commit of every logged delta."""
        self.of_row: dict[Key, list[Delta]] = defaultdict(list)
        self.accepted: dict[str, Delta] = {}
        """Every delta that a receipt called accepted."""
        self.accepted_of: dict[tuple[str, str, str], list[Delta]] = defaultdict(list)
        """The same by client, table and row."""
        self.refused: dict[str, str] = {}
        """The code of every refusal, by delta id."""
        self.set_aside: set[tuple[str, bytes]] = set()
        """Client and size of every edit that waited for its app: it may be stamped again later."""
        self.introduced: set[str] = set()
        """Clients of which it is sure that they were told which gateway this is."""
        self.elsewhere: set[str] = set()
        """Clients that belong to the gateway that had the name before, as far as that is sure."""
        self.before: dict[str, Delta] = {}
        """What that one had logged, by id."""
        self._logged_by: dict[str, Push] = {}
        self.blind: set[str] = set()
        """Clients that a restored buffer took a push from before they had read anything of any."""
        self.parted: set[str] = set()
        """What was lost, by id, of pushes of which other parts were not."""
        self.horizons: dict[str, int] = {}
        """By table: deletions up to here may be known to some, and to others not any more."""
        self.handed_out = 0
        """The greatest cursor that a page carried."""
        self.settled = 0
        """The last commit that was visible as a whole."""
        self._settled_at: list[tuple[int, int]] = []
        """When ``settled`` rose, and to what."""
        self._unsettled: set[int] = set()
        self.lost: list[tuple[int, Delta]] = []
        """What a restored buffer no longer holds, each with its commit."""
        self.in_lake_only: dict[str, int] = defaultdict(int)
        """For each client, the stamp up to which it may never have seen an event."""
        self.seen_ahead: dict[str, int] = defaultdict(int)
        """For each client, up to where a snapshot may have shown it rows, whatever its cursor."""
        self.behind_ms: dict[str, int] = defaultdict(int)
        """For each client, how far newer commits were ahead of its last page."""
        self._last: dict[str | Key, int] = {}
        """The last commit in each lane, and to each row."""
        self._rows: dict[Key, Row] = {}

    def may_be_forgotten(self, table: str, deleted: int) -> bool:
        """Return whether a deletion of a row of a table may be known to some only."""
        return deleted <= self.horizons.get(table, 0)

    def remembered(self, table: str, row: Row) -> Row:
        """Return a row of a table without a deletion that may be forgotten."""
        return row._replace(deleted=0) if self.may_be_forgotten(table, row.deleted) else row

    def row(self, key: Key) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = row_of(self.of_row.get(key, ()))
        return row

    # --- commits ----------------------------------------------------------------------------------

    def committed(self, commit: Commit, push: Push | None) -> None:
        """Hold a commit that just happened against everything before.

        Args:
            commit: the commit.
            push: the push that its function works on.
        """
        stamp = commit.stamp
        if stamp <= self.handed_out:
            raise Violation("no commit below a cursor", f"{stamp} <= {self.handed_out}")
        for row in (*commit.rows, *commit.marks):
            if stamp <= self._last.get(row, 0):
                raise Violation("commit stamps rise", f"{row}: {stamp} after {self._last[row]}")
            self._last[row] = stamp
        for lane, part in commit.lanes.items():
            if stamp <= self._last.get(lane, 0):
                raise Violation("commit stamps rise", f"{lane}: {stamp} after {self._last[lane]}")
            self._last[lane] = stamp
            insort(self.log, Logged(stamp, lane, part.entry.records, part.entry.count))
            deltas = decode_records(part.entry.records)
            before = {key: self.row(key) for key in {(one.table, one.row_id) for one in deltas}}
            for delta in deltas:
                self._check_gateway(delta.client_id, delta)
                if push is not None:
                    self._check_write(delta, push, before[delta.table, delta.row_id])
                self._logged(delta, stamp)
            if push is not None:
                self._pushed(deltas, push, before)
        self._unsettled.add(stamp)
        self._check_whole(push)

    def settle(self, stamp: int, now_ms: int) -> None:
        """Note that a commit is visible as a whole."""
        self._unsettled.discard(stamp)
        self.settled = max(self.settled, stamp)
        self._settled_at.append((now_ms, self.settled))

    def settled_by(self, ms: int) -> int:
        """Return the last commit that was visible as a whole at a moment."""
        place = bisect_right(self._settled_at, ms, key=lambda settled: settled[0])
        return self._settled_at[place - 1][1] if place else 0

    @property
    def whole(self) -> int:
        """Return the stamp up to which every commit is visible as a whole."""
        return min([self.settled, *(stamp - 1 for stamp in self._unsettled)])

    def restored(self, log: list[Logged]) -> None:
        """Note that the buffer holds what it held at an earlier moment, and nothing else."""
        kept, gone = set(log), set(self.log)
        self.lost += [(item.stamp, delta) for item in sorted(gone - kept)
                      for delta in self.decoded(item)]  # fmt: skip
        self.log = list(log)
        self._unsettled.clear()
        for known in (self.deltas, self.commit_of, self.of_row, self._rows):
            known.clear()
        for item in log:
            for delta in self.decoded(item):
                self.deltas[delta.delta_id] = delta
                self.commit_of[delta.delta_id] = item.stamp
                self.of_row[delta.table, delta.row_id].append(delta)
        for item in gone - kept:
            self.parted.update(
                delta.delta_id for delta in self.decoded(item) if self._is_parted(delta)
            )
        # What an earlier restore had lost may be back.
        back = {(self.commit_of[delta_id], delta_id) for delta_id in self.deltas}
        self.lost = [item for item in self.lost if (item[0], item[1].delta_id) not in back]

    def set_up_anew(self) -> None:
        """Note that from now on another gateway has the name: it knows of nothing before."""
        self.elsewhere, self.introduced = self.elsewhere | self.introduced, set()
        self.before.update(self.deltas)
        for known in (
            self.log, self.deltas, self.commit_of, self.of_row, self.accepted_of, self._settled_at,
            self._unsettled, self.horizons, self.seen_ahead, self.behind_ms, self._last, self._rows,
        ):  # fmt: skip
            known.clear()
        self.handed_out = self.settled = 0

    def _check_gateway(self, client_id: str, what: object) -> None:
        if client_id in self.elsewhere:
            raise Violation("a file belongs to one gateway", f"{client_id}: {what}")

    def _is_parted(self, lost: Delta) -> bool:
        push = self._logged_by.get(lost.delta_id)
        return push is not None and any(delta.delta_id in self.deltas for _, delta in push.deltas)

    def _logged(self, delta: Delta, stamp: int) -> None:
        if delta.delta_id in self.deltas:
            raise Violation("exactly once", f"{delta} was logged a second time")
        key = (delta.table, delta.row_id)
        if self.appends(delta.table):
            self._rows.pop(key, None)
        else:
            before = self.row(key)
            after = row_of([*self.of_row[key], delta])
            if after == before:
                raise Violation("duplicates are not logged", f"{delta} changes nothing")
            self._rows[key] = after
        self.deltas[delta.delta_id] = delta
        self.commit_of[delta.delta_id] = stamp
        self.of_row[key].append(delta)

    def _check_write(self, delta: Delta, push: Push, before: Row) -> None:
        """Hold a write against the rules in force, which its commit required.

        Args:
            delta: the write.
            push: what it came with.
            before: its row before the commit.
        """
        (eyes,) = self.rulings.eyes(push.claims)
        key = (delta.table, delta.row_id)
        event = self.appends(delta.table)
        before = NOTHING if event else before
        after = row_of([delta] if event else [*self.of_row.get(key, ()), delta])
        after = NOTHING if delta.op is Op.DELETE else after  # what it leaves is not its writer's
        left_out = eyes.left_out(delta.table)
        if any(name.lower() in left_out for name, _ in delta.columns):
            raise Violation("nobody writes what is left out", f"{delta}: {eyes}")
        if not eyes.may_write(delta.table, before, after):
            raise Violation("writes keep to the rules", f"{delta}: {before}, {after}, {eyes}")

    def _pushed(self, deltas: list[Delta], push: Push, before: dict[Key, Row]) -> None:
        for delta in deltas:
            self._logged_by[delta.delta_id] = push
            if self.lost and push.epoch is None:
                self.blind.add(delta.client_id)
        self._check_revived(deltas, push, before)

    def _check_revived(self, deltas: list[Delta], push: Push, before: dict[Key, Row]) -> None:
        """Check that a commit made no deleted row anew of nothing but updates, under rules."""
        (eyes,) = self.rulings.eyes(push.claims)
        inserted = {(delta.table, delta.row_id) for delta in deltas if delta.op is not Op.UPDATE}
        for key, row in before.items():
            if key in inserted or row.exists or not row.deleted or deletes_win(key[0]):
                continue
            if self.may_be_forgotten(key[0], row.deleted):
                continue  # the gateway may not know that it was there
            if not (self.appends(key[0]) or eyes.see_all_of(key[0])) and self.row(key).exists:
                raise Violation("deleted rows come back whole", f"{key}: {row}, {self.row(key)}")

    def _check_whole(self, push: Push | None) -> None:
        if push is None or not push.atomic:
            return
        for _, delta in push.deltas:
            if delta.delta_id not in self.commit_of and self._matters(delta):
                raise Violation("atomic pushes are whole", f"{delta} is missing from its commit")

    def _changes(self, delta: Delta) -> bool:
        if self.appends(delta.table):
            return True
        key = (delta.table, delta.row_id)
        return row_of([*self.of_row.get(key, ()), delta]) != self.row(key)

    def _matters(self, delta: Delta) -> bool:
        """Return whether a delta would change a row, but for a deletion that may be forgotten."""
        key = (delta.table, delta.row_id)
        after = row_of([*self.of_row.get(key, ()), delta])
        if self.appends(delta.table):
            return True
        rows = (self.remembered(delta.table, row) for row in (after, self.row(key)))
        return next(rows) != next(rows)

    # --- receipts ---------------------------------------------------------------------------------

    def answered(self, push: Push, receipt: PushReceipt) -> None:
        """Hold a receipt against the log: what it calls accepted must be there."""
        self._check_gateway(push.client_id, push)
        outcome = {item.index: item for item in receipt.outcomes}
        accepted = 0
        for index, delta in push.deltas:
            item = outcome.get(index)
            if item is not None and item.error is not None:
                self.refused[delta.delta_id] = item.error.code
                if item.error.retry is Retry.NEVER:
                    size = dict(delta.columns).get("size", b"")
                    self.set_aside.add((delta.client_id, size))
                # Another copy of the push may have been taken: by a function with another clock.
                if self._logged_by.get(delta.delta_id) is push:
                    raise Violation("refused is refused", f"{delta} was logged by this push")
                continue
            accepted += 1
            if delta.delta_id not in self.accepted:
                self.accepted[delta.delta_id] = delta
                self.accepted_of[delta.client_id, delta.table, delta.row_id].append(delta)
            if delta.delta_id not in self.deltas and self._matters(delta):
                raise Violation("accepted is durable", f"{delta} is nowhere")
        if accepted != receipt.accepted:
            raise Violation("receipts add up", f"{receipt.accepted} of {accepted}")
        if push.atomic and accepted not in {0, len(push.deltas) + len(push.unreadable)}:
            raise Violation("atomic pushes are whole", f"{accepted} of {len(push.deltas)}")

    # --- pages ------------------------------------------------------------------------------------

    def paged(self, pull: Pull, page: PullPage, began: Began, eyes: list[Eyes]) -> None:
        """Hold a page against the log: it holds whole commits, and all of its range.

        Args:
            pull: the request.
            page: the answer.
            began: what was true when the request began.
            eyes: the client's claims, with all rules that were in force meanwhile.
        """
        self._check_gateway(pull.client_id, pull)
        if not page.snapshot:  # there it only tells the time of the rows
            self.handed_out = max(self.handed_out, page.cursor)
        is_whole = all(each.see_everything for each in eyes)
        if not is_whole:
            self._check_sight(page, began, eyes)
            # A row that comes into sight is sent as it is, which may be newer than the cursor.
            last = self.log[-1].stamp if self.log else 0
            self.seen_ahead[pull.client_id] = max(self.seen_ahead[pull.client_id], last)
        settled = began.settled
        self.behind_ms[pull.client_id] = page.behind_ms
        if page.snapshot:
            self._pictured(pull, page, eyes)
            return
        if pull.snapshot:
            since = 0 if begins(pull.snapshot) else log_behind(pull.snapshot)
            pull = replace(pull, since=since)
        elif pull.since < began.trimmed or (pull.since and pull.epoch not in {"", page.epoch}):
            raise Violation("void cursors are refused", f"{pull} was answered, {began}")
        if is_whole:
            self._check_run(pull, page)
        if page.cursor < pull.since or (page.has_more and page.cursor == pull.since):
            raise Violation("pages lead on", f"{pull.since} to {page.cursor}")
        # Under load a page may end a little before the newest commit, if it says so.
        is_under_load = page.behind_ms and not began.is_quiet
        asked = max(pull.at_least, began.seen)
        wanted = min(settled, asked) if is_under_load else settled
        shown_ms = stamp_ms(page.cursor) + page.behind_ms
        behind = page.cursor < wanted or stamp_ms(began.settled_before) > shown_ms
        if not page.has_more and page.cursor < settled and behind:
            raise Violation("pages reach the present", f"{page.cursor} is behind {settled}")

    def broadcast(self, client_id: str, page: PullPage, began: Began, eyes: list[Eyes]) -> None:
        """Hold a broadcast against the log, as a page behind the stamp that it names.

        Args:
            client_id: who is sent it.
            page: the broadcast.
            began: what was true when the process began.
            eyes: the connection's claims, with all rules that were in force meanwhile.
        """
        if page.previous is None:
            return
        deltas = [delta for run in page.records for delta in decode_records(run)]
        if any(delta.client_id == client_id for delta in deltas):
            raise Violation("the sender gets no echo", f"{client_id}: {deltas}")
        self.handed_out = max(self.handed_out, page.cursor)
        if not all(each.see_everything for each in eyes):
            self._check_sight(page, began, eyes)
            last = self.log[-1].stamp if self.log else 0
            self.seen_ahead[client_id] = max(self.seen_ahead[client_id], last)
            return
        due = self.between(page.previous, page.cursor)
        wanted = [delta.delta_id for item in due for delta in self.decoded(item)]
        if sorted(wanted) != sorted(delta.delta_id for delta in deltas):
            message = (
                f"({page.previous}, {page.cursor}] has {len(wanted)} deltas, {len(deltas)} came"
            )
            raise Violation("a broadcast is its range", message)
        if due[0].stamp != page.first:
            raise Violation("a broadcast is its range", f"it begins at {page.first}: {due[0]}")

    def _check_sight(self, page: PullPage, began: Began, eyes: list[Eyes]) -> None:
        """Hold all that is sent against what the client may see."""
        begun = began.whole
        if page.snapshot:  # a checkpoint shows rows as they were since it was begun
            begun = min(begun, log_behind(page.snapshot))
        for run in page.records:
            for delta in decode_records(run):
                key = (delta.table, delta.row_id)
                commits = [(self.commit_of[one.delta_id], one) for one in self.of_row[key]]
                if delta.op.name == "REMOVE":
                    before = Moments(commits).until(delta.hlc - 1)
                    if not any(each.see(delta.table, before) for each in eyes):
                        raise Violation("nobody is sent what is hidden", f"{delta}: {before}")
                    continue
                event = self.appends(delta.table)
                if not may_be_sent(delta, Moments(commits), begun, eyes, event=event):
                    raise Violation("nobody is sent what is hidden", f"{delta}: {eyes}")

    def _check_run(self, pull: Pull, page: PullPage) -> None:
        """Hold a page of somebody who sees everything against the log."""
        due = self.between(pull.since, page.cursor)
        if [item.records for item in due] != list(page.records) and sorted(
            item.records for item in due
        ) != sorted(page.records):
            message = f"({pull.since}, {page.cursor}] has {len(due)} runs, {len(page.records)} came"
            raise Violation("a cursor misses no commit", message)
        if due:
            last = due[-1].stamp
            others = sum(item.deltas for item in due if item.stamp != last)
            if others >= pull.deltas_max:
                raise Violation("pages are bounded", f"{page.count} for {pull.deltas_max}")

    def _pictured(self, pull: Pull, page: PullPage, eyes: list[Eyes]) -> None:
        """Hold a page of rows against the log: no more rows than asked for, and none made up."""
        client = pull.client_id
        since = log_behind(page.snapshot)
        # Where tables are read again, the log was read up to there.
        if resume_token_of(page.snapshot).reads is Reads.ALL_TABLES:
            self.in_lake_only[client] = max(self.in_lake_only[client], since)
        self.seen_ahead[client] = max(self.seen_ahead[client], page.cursor)
        rows: dict[Key, list[Delta]] = defaultdict(list)
        for run in page.records:
            for delta in decode_records(run):
                rows[delta.table, delta.row_id].append(delta)
        if len(rows) > pull.deltas_max:
            raise Violation("pages are bounded", f"{len(rows)} rows for {pull.deltas_max}")
        for key, deltas in rows.items():
            known = [*self.deltas_until(since, key)]
            least = self.remembered(key[0], row_of(known))
            if not any(at_least(row_of(deltas), each.shown(key[0], least)) for each in eyes):
                raise Violation("snapshots are whole", f"{key}: {deltas}, not {known}")
            if not at_least(self.row(key), row_of(deltas)):
                raise Violation("snapshots are whole", f"{key}: {deltas}, at most {self.row(key)}")

    def between(self, after: int, until: int) -> list[Logged]:
        """Return what was committed in ``(after, until]``."""
        first = bisect_right(self.log, after, key=lambda item: item.stamp)
        last = bisect_right(self.log, until, key=lambda item: item.stamp)
        return self.log[first:last]

    def decoded(self, item: Logged) -> list[Delta]:
        return decode_records(item.records)

    def deltas_until(self, until: int, key: Key) -> list[Delta]:
        """Return a row's deltas that were committed up to a stamp."""
        deltas: Iterable[Delta] = self.of_row.get(key, ())
        return [delta for delta in deltas if self.commit_of[delta.delta_id] <= until]
