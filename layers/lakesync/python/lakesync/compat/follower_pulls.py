"""What followers read: existing clients, whose cursor is moved by receipts as well as by pages.

Rules of this module
    1. A receipt never moves a cursor beyond what the follower has. A 200 means that the whole push
       was accepted: a follower reads nothing else of an answer.
    2. So some rows are sent to it twice, in a form that gives the same row whether it has the row
       already or not (`lakesync.compat.follower_deltas`).
    3. Its requests contain nothing but a cursor. All other state is stored in one item for each
       follower (`lakesync.compat.follower_progress`); other clients never cause a read or write of
       it.
    4. A client is not a follower if its request has any field that only our own clients send.

A checkpoint is a stream of frames, for clients that read it whole or part by part. Its rows are
filtered as a pull's are; see `lakesync.gateway.filtered_reads`.

The reasons: ``docs/adr/0006-followers.md``. Laws F1-F8: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.checkpoint import has_events
from lakesync.checkpoint.store import frame
from lakesync.compat.follower_deltas import LegacyFormat, rows_of
from lakesync.compat.follower_progress import (
    SKIPPED_DELIVERIES,
    Follower,
    Position,
    Resend,
    arrived,
    given,
    in_scope,
    is_follower,
    may_begin_again,
    pack,
    policy_of,
    replaced_policies,
    resending,
    unpack,
    viewer_of,
    visible_tables,
    void,
)
from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import SNAPSHOT, Pull, PullPage
from lakesync.core.visibility import Viewer
from lakesync.errors import CheckpointTooLarge, Contention, CursorExpired, NotFound
from lakesync.gateway.bootstrap import CheckpointRows, check_decides, decides
from lakesync.gateway.filtered_reads import RuleFilter
from lakesync.log.read import ReadBarrier
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.checkpoint.store import Checkpoints, Manifest
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.gateway.pull import PullService
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, RowKey, WallClock

# --- pages ----------------------------------------------------------------------------------------


OWN_DELTAS_MAX: Final = 100
"""Own deltas of a page that may still be in the queue: as many as existing clients push at once."""
_Groups: TypeAlias = "list[list[Delta]]"


class FollowingPulls:
    """Answers pulls: a follower's by its stored state, any other's unchanged."""

    def __init__(self, pulls: PullService, buffer: Buffer, *, wall_clock: WallClock) -> None:
        self._pulls = pulls
        self._buffer = buffer
        self._wall_clock = wall_clock

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Return the next page; see `lakesync.gateway.pull.PullService.pull`.

        Additional cost for a follower: two read units; one for each row of the page; one write unit
        if it or the log advanced.
        """
        if not is_follower(pull):
            return self._pulls.pull(gateway, pull)
        # Its state is stored by the end of each page, which it reads as the newest commit.
        pull = replace(pull, at_least=STAMP_MAX)
        config = self._buffer.config(gateway)
        viewer = viewer_of(config, pull.claims)
        stored = self._buffer.client_state(gateway, pull.client_id)
        known = unpack(stored)
        visible = partial(visible_tables, config, viewer)
        scope, policy = viewer.scope().text(), policy_of(config.rules, pull.claims)
        at = in_scope(arrived(known, pull.since, visible), scope, policy)
        try:
            page, after = self._page(gateway, pull, at, config, viewer)
        except CursorExpired:
            # The log does not reach back so far: send rows as they are, from the beginning.
            at = void(at, Position(snapshot=SNAPSHOT))
            page, after = self._page(gateway, pull, at, config, viewer)
        if after != known and not self._buffer.save_client_state(
            gateway, pull.client_id, stored, pack(after)
        ):
            raise Contention("two requests of this client crossed; try again in a moment")
        return page

    def _page(
        self, gateway: str, pull: Pull, at: Follower, config: GatewayConfig, viewer: Viewer
    ) -> tuple[PullPage, Follower]:
        """Get the page that begins at `Follower.page_from`, and the follower's state after it."""
        begins = at.page_from
        again = at.holds_rows and (begins.since < at.again_until or bool(begins.snapshot))

        def may_know(table: str) -> bool:
            # An app cannot apply a change of a table that it was made without, not even a delete.
            return table in at.known_tables or viewer.may_see(table)

        resend = {key: None for key in self._due(at) if may_know(key[0])}
        while True:
            pages = self._read(gateway, pull, at, config)
            if pages[0].scope != at.scope:
                raise Contention("the rules are being changed; try again in a moment")
            is_rows = bool(pages[0].snapshot)
            makes = LegacyFormat(
                self._buffer, gateway, config, viewer,
                again=again, mine=pull.client_id if at.holds_rows and at.holds_own else "",
            )  # fmt: skip
            shown = [delta for page in pages for delta in _shown(page, viewer)]
            logged = [delta for delta in shown if may_know(delta.table)]
            if is_rows:
                groups = rows_of(logged, config, again=at.rows_again or bool(resend))
            else:
                groups = makes.log_page(logged, resend)
            if _size(groups) <= pull.bytes_max or (again and pull.deltas_max == 1):
                break
            # Rows as they are can be larger than their logged deltas, and one commit can show more
            # rows than fit into a page; the rest is left for the next pages.
            again = again or pull.deltas_max == 1
            fewer = min(pull.deltas_max, max(page.count for page in pages)) // 2
            pull = replace(pull, deltas_max=max(fewer, 1))
        in_page = {(delta.table, delta.row_id) for group in groups for delta in group}
        rest = [key for key in resend if key not in in_page]
        groups, left = _cut([*groups, *makes.rows(rest)], pull.bytes_max, config)
        at = _sent(at, {*in_page, *rest} - left)
        once_more = set() if is_rows else _once_more(at, pull, logged, config) - left
        at = resending(at, [Resend(*key) for key in left if key not in resend])
        at = resending(at, [Resend(*key, 0, SKIPPED_DELIVERIES, True) for key in once_more])
        return _given(pages, at, groups)

    def _read(
        self, gateway: str, pull: Pull, at: Follower, config: GatewayConfig
    ) -> list[PullPage]:
        """Read the next pages: by the rules in force, and by each policy that they replaced.

        The replaced ones still give the deletes of rows that are hidden by now.
        """
        since, snapshot = at.page_from
        if snapshot:
            asked = replace(pull, since=0, snapshot=snapshot)
            return [self._pulls.pull(gateway, asked)]
        # What it was sent is known, and by which policy: so each pull has a scope. Where the log
        # cannot decide an entry's row by a policy, nobody was sent the row because of that entry.
        pages = [self._pulls.pull(gateway, replace(pull, since=since, scope=at.scope))]
        for policy in replaced_policies(at.replaced):
            scope = Viewer(policy.rules, policy.claims, config.logged.generation).scope().text()
            by_policy = replace(
                pull, since=since, rules=policy.rules, claims=policy.claims, scope=scope
            )
            pages.append(self._replaced(gateway, by_policy, policy.until))
        return pages

    def _replaced(self, gateway: str, pull: Pull, until: Stamp) -> PullPage:
        """Read the next page by a policy that was replaced, and brought nothing behind a commit.

        Behind it the follower may hold what it wrote itself. Of a row that others made since, not
        even a delete is sent.
        """
        none = PullPage((), 0, pull.since, has_more=False)
        page = self._pulls.pull(gateway, replace(pull, until=until)) if pull.since < until else none
        if page.has_more:
            return page
        behind = self._pulls.pull(gateway, replace(pull, since=max(pull.since, until)))
        deltas = [delta for run in behind.records for delta in decode_records(run)]
        mine = {(one.table, one.row_id) for one in deltas if one.client_id == pull.client_id}
        own = [delta for delta in deltas if (delta.table, delta.row_id) in mine]
        records = (*page.records, *([encode_records(own)] if own else []))
        return replace(behind, records=records, count=page.count + len(own))

    def _due(self, at: Follower) -> dict[RowKey, None]:
        now_ms = self._wall_clock()
        due = [row for row in at.resend if row.not_before_ms <= now_ms]
        return {(row.table, row.row_id): None for row in due}


def _sent(at: Follower, keys: set[RowKey]) -> Follower:
    rows = [row._replace(is_sent=(row.table, row.row_id) in keys) for row in at.resend]
    return replace(at, resend=tuple(rows))


def _once_more(at: Follower, pull: Pull, logged: list[Delta], config: GatewayConfig) -> set[RowKey]:
    """Return logged rows that may have been skipped in part because of an edit in the queue."""
    due = {(row.table, row.row_id) for row in at.resend if not row.not_before_ms}
    once_more = {(delta.table, delta.row_id) for delta in logged} & due
    if at.holds_rows and not at.by_receipt:
        own = [delta for delta in logged if delta.client_id == pull.client_id]
        if len(own) <= OWN_DELTAS_MAX:
            once_more |= {(delta.table, delta.row_id) for delta in own}
    return {key for key in once_more if not config.appends(key[0])}


def _shown(page: PullPage, viewer: Viewer) -> list[Delta]:
    """Return a page's deltas: what a replaced policy did not leave out may be left out now."""
    each = (viewer.shown(delta) for run in page.records for delta in decode_records(run))
    return [delta for delta in each if delta is not None]


def _given(
    pages: list[PullPage], at: Follower, groups: list[list[Delta]]
) -> tuple[PullPage, Follower]:
    """Return the page that is given in place of what was read, and the follower's state after it.

    It ends where the first of the pages ends.
    """
    is_rows = bool(pages[0].snapshot)
    until = Position(min(page.cursor for page in pages))
    if is_rows:
        until = Position(snapshot=pages[0].snapshot)
    has_more = any(page.has_more or page.cursor > until.since for page in pages)
    after = given(
        at, until, sent={group[0].table for group in groups}, has_more=has_more,
        given_until=pages[0].cursor if is_rows else 0,
    )  # fmt: skip
    page = replace(
        pages[0], cursor=after.page_cursor, has_more=has_more, snapshot="", resync=None,
    )  # fmt: skip
    return _filled(page, groups), after


def _filled(page: PullPage, groups: _Groups) -> PullPage:
    deltas = [delta for group in groups for delta in group]
    records = (encode_records(deltas),) if deltas else ()
    return replace(page, records=records, count=len(deltas))


def _size(groups: _Groups) -> int:
    return sum(len(encode_records(group)) for group in groups)


def _cut(groups: _Groups, bytes_max: int, config: GatewayConfig) -> tuple[_Groups, set[RowKey]]:
    """Take groups while they fit. Rows as they are may be left for later; logged deltas never.

    Returns:
        What is taken, and the rows that are left.
    """
    kept: _Groups = []
    left: set[RowKey] = set()
    for group in groups:
        bytes_max -= _size([group])
        key = (group[0].table, group[0].row_id)
        if bytes_max < 0 and kept and len(group) > 1 and not config.appends(key[0]):
            left.add(key)
        else:
            kept.append(group)
    return kept, left


# --- a checkpoint as a stream ---------------------------------------------------------------------


READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""Parts that one request reads, even if its client may see only a few rows of them: some seconds.
"""
_TABLES_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """One part, as one client sees it."""

    checkpoint: str
    since: Stamp
    """Where the log continues behind the whole checkpoint."""
    frame: bytes
    following: tuple[str, int] | None
    """The table and number of the next part; None behind the last."""


@dataclass(frozen=True, slots=True)
class CheckpointFrames:
    """A whole checkpoint, as one client sees it."""

    checkpoint: str
    since: Stamp
    frames: Iterator[bytes]
    """Read as they are asked for. Raises `lakesync.errors`."""
    too_large: CheckpointTooLarge
    """The answer if they do not fit."""


class CheckpointService:
    """Serves checkpoints of any gateway. One for each process; one request at a time."""

    def __init__(self, buffer: Buffer, checkpoints: Checkpoints) -> None:
        self._buffer = buffer
        self._checkpoints = checkpoints
        self._barrier = ReadBarrier(buffer)

    def whole(self, gateway: str, pull: Pull) -> CheckpointFrames:
        """Return the latest checkpoint, frame by frame, never more than one in memory.

        Raises:
            NotFound: there is none.
        """
        if is_follower(pull):
            self._note_beginning(gateway, pull.client_id)
        log = self._barrier.raise_heads(gateway)
        rule_filter = RuleFilter(log.config, pull)
        manifest = self._manifest(log, rule_filter)
        runs = self._runs(manifest, rule_filter, pull)
        frames = map(frame, self._for_client(log, pull, runs))
        since = self._since(log, manifest)
        return CheckpointFrames(manifest.id, since, frames, _too_large(manifest))

    def part(
        self, gateway: str, pull: Pull, table: str, number: int, checkpoint: str = ""
    ) -> CheckpointPart:
        """Return one part of a checkpoint.

        Args:
            table: a table of the checkpoint; its first one if empty.
            number: which of the table's parts, from 0.
            checkpoint: which checkpoint; the latest if empty.

        Raises:
            NotFound: there is none such.
            CursorExpired: the checkpoint is no longer kept.
        """
        log = self._barrier.raise_heads(gateway)
        rule_filter = RuleFilter(log.config, pull)
        manifest = self._manifest(log, rule_filter, checkpoint)
        table = table or manifest.after("")
        chunks = manifest.tables.get(table)
        if chunks is None or number >= chunks.parts:
            raise NotFound("the checkpoint has no such part", field="part")
        source = CheckpointRows(self._checkpoints, manifest, rule_filter)
        rows = source.read(table, f"{number}:0", pull.deltas_max, pull.bytes_max)
        following = manifest.after(table)
        after = (following, 0) if following else None
        if number + 1 < chunks.parts:
            after = (table, number + 1)
        body = frame(b"".join(rows.records.runs))
        return CheckpointPart(manifest.id, self._since(log, manifest), body, after)

    def _manifest(self, log: FinalLog, rule_filter: RuleFilter, checkpoint: str = "") -> Manifest:
        """Return the named checkpoint, or the latest that may be sent; of it the reader's tables.

        So no answer names a table of which the rules can show the reader nothing, and no object of
        one is read.
        """
        manifest = self._sendable(log, rule_filter, checkpoint)
        may_see = rule_filter.viewer.may_see
        tables = {name: chunks for name, chunks in manifest.tables.items() if may_see(name)}
        return replace(manifest, tables=tables)

    def _sendable(self, log: FinalLog, rule_filter: RuleFilter, checkpoint: str) -> Manifest:
        if checkpoint:
            manifest = self._checkpoints.manifest(log.gateway, checkpoint)
            check_decides(manifest, log.config, rule_filter)
            if manifest.epoch == log.epoch and manifest.since >= log.trimmed:
                return manifest
            raise CursorExpired("the checkpoint is out of date; begin again", field="checkpoint")
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        if latest is None or not decides(latest, log.config, rule_filter):
            raise NotFound("there is no checkpoint; pull from 0, or with snapshot=begin")
        return latest

    def _since(self, log: FinalLog, manifest: Manifest) -> Stamp:
        # A checkpoint contains no events, so the log is read from its first entry to send them.
        events = has_events(log, self._buffer.flushed_tables(log.gateway))
        return log.trimmed if events else manifest.since

    def _note_beginning(self, gateway: str, client_id: str) -> None:
        """Note that a known follower begins again, with rows on its disk."""
        stored = self._buffer.client_state(gateway, client_id)
        known = unpack(stored)
        if known is None or (after := may_begin_again(known)) == known:
            return
        if not self._buffer.save_client_state(gateway, client_id, stored, pack(after)):
            raise Contention("two requests of this client crossed; try again in a moment")

    def _for_client(self, log: FinalLog, pull: Pull, runs: Iterator[bytes]) -> Iterator[bytes]:
        """Get runs unchanged; for a follower, in a form that is right with or without the rows."""
        if not is_follower(pull):
            yield from runs
            return
        again = unpack(self._buffer.client_state(log.gateway, pull.client_id)) is not None
        for run in runs:
            rows = rows_of(decode_records(run), log.config, again=again)
            if rows:
                yield encode_records([delta for row in rows for delta in row])

    def _runs(self, manifest: Manifest, rule_filter: RuleFilter, pull: Pull) -> Iterator[bytes]:
        source = CheckpointRows(self._checkpoints, manifest, rule_filter)
        for table in manifest.tables:
            position = ""
            while True:
                rows = source.read(table, position, pull.deltas_max, pull.bytes_max)
                if rows.records.deltas:
                    yield b"".join(rows.records.runs)
                if source.bytes_read > READ_BYTES_MAX:
                    raise _too_large(manifest)
                position = rows.position
                if not position:
                    break


def _too_large(manifest: Manifest) -> CheckpointTooLarge:
    tables = list(manifest.tables.items())
    named = [f"{name} 0 to {chunks.parts - 1}" for name, chunks in tables[:_TABLES_NAMED_MAX]]
    if len(tables) > _TABLES_NAMED_MAX:
        named.append(f"and {len(tables) - _TABLES_NAMED_MAX} tables more")
    return CheckpointTooLarge(
        "the checkpoint does not fit one answer; ask for its parts with ?table= and part=, "
        f"following X-Checkpoint-Next: {', '.join(named)}"
    )
