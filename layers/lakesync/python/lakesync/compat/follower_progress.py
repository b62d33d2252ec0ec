"""What is known of one follower: its stored state, how far it has read, and what it may see.

Rules of this module
    1. Each answer has a cursor that no other recent answer had, so the next request's cursor shows
       which answer reached the follower last. A page's cursor proves that page. The cursor of the
       request before proves that the page had no effect. A receipt's cursor proves nothing about
       the page before it.
    2. Pages that are not proven are sent again.
    3. A follower that pushes in every round proves nothing. After a page was sent
       `DELIVERIES_ASSUMED_READ` times, new pages begin behind it. Once the follower sends a page's
       cursor, all that was assumed is sent again until it is proven.
    4. When the rules or claims that decide which rows it sees change, everything is sent again,
       with deletes of the rows that are no longer visible.

Laws F1, F3 and F5: ``docs/spec/followers.md``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.clock import STAMP_MAX
from lakesync.core.config import WRITES, check_format, known
from lakesync.core.messages import Pull
from lakesync.core.rules import rules_from_stored, rules_to_json
from lakesync.core.visibility import Viewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import Push
    from lakesync.core.rules import SyncRules
    from lakesync.ports import RowKey

# --- the stored state -----------------------------------------------------------------------------


class Position(NamedTuple):
    """Where a page begins."""

    since: Stamp = 0
    """The page reads the log after this commit."""
    snapshot: str = ""
    """If not empty, it reads rows as they are: `lakesync.core.messages.Pull.snapshot`."""

    def is_behind(self, other: Position) -> bool:
        """Get whether this position is before the other; rows as they are come before the log."""
        if self.snapshot or other.snapshot:
            return bool(self.snapshot) and self != other
        return self.since < other.since


START: Final = Position()


_LISTS: Final = ("replaced", "tables", "sent_tables", "page_tables")


class Resend(NamedTuple):
    """A row that is sent as it is, whatever the log says."""

    table: str
    row_id: str
    not_before_ms: int = 0
    """An edit of it is too new by the gateway's clock, and is accepted from then on."""
    proofs: int = 1
    """How many proven pages must still contain it."""
    is_sent: bool = False
    """The last page contained it."""


@dataclass(frozen=True, slots=True)
class Follower:
    cursor: Stamp = 0
    """The cursor of its last request."""
    proven: Position = START
    """It has all rows and changes before this position that it may see."""
    ahead: Position = START
    """Where new pages begin; what lies between `proven` and this is only assumed to have arrived.
    """
    page_from: Position = START
    """Where the last page began."""
    page_until: Position = START
    page_cursor: Stamp = 0
    page_has_more: bool = False
    is_pending: bool = False
    """The last page contained something, and is not proven."""
    deliveries: int = 0
    """Pages from `ahead` on that were followed by a push."""
    lost: int = 0
    """How often the last page had no effect."""
    given_until: Stamp = 0
    """The furthest in the log that any page took it."""
    again_until: Stamp = 0
    """Up to here in the log, it may hold what it is sent."""
    rows_again: bool = False
    """It may hold rows of the snapshot that it is sent."""
    holds_rows: bool = False
    """It has come with a cursor, so it may hold rows."""
    holds_own: bool = False
    """It may hold its own edits of what it is sent."""
    by_receipt: bool = False
    """Its last request had a receipt's cursor: its earlier pushes are no longer in its queue."""
    begins_again: bool = False
    """Its next page begins with everything again."""
    scope: str = ""
    """The scope of its last page."""
    policy: str = ""
    """The rules that decided it and the token claims that they name, as JSON."""
    replaced: tuple[str, ...] = ()
    """Earlier policies under which it may have received rows up to `again_until`."""
    resend: tuple[Resend, ...] = ()
    tables: tuple[str, ...] = ()
    """Tables of pages that it has applied."""
    sent_tables: tuple[str, ...] = ()
    """Tables of pages that it may have applied, and of none that it has."""
    page_tables: tuple[str, ...] = ()
    """The tables of the last page."""

    @property
    def known_tables(self) -> frozenset[str]:
        return frozenset((*self.tables, *self.sent_tables))


def pack(follower: Follower) -> bytes:
    body = {"format": WRITES} | asdict(follower)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def unpack(stored: bytes | None) -> Follower | None:
    """Read what `pack` gave, in any release; unknown fields are left out.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    if stored is None:
        return None
    body = json.loads(stored)
    check_format(body["format"], "a follower")
    positions = ("proven", "ahead", "page_from", "page_until")
    body |= {name: Position(*body[name]) for name in positions if name in body}
    rows = tuple(Resend(*row) for row in body.get("resend", ()))
    lists = {name: tuple(body.get(name, ())) for name in _LISTS}
    return known(Follower, body | lists | {"resend": rows})


def cursor_of(stored: bytes) -> Stamp:
    """Return the cursor of a follower's last request; 0 if it has never sent one.

    Raises:
        UpgradeRequired: only a later release can read what is stored.
    """
    follower = unpack(stored)
    return follower.cursor if follower else 0


# --- how far it has read --------------------------------------------------------------------------


RECEIPT_CURSORS: Final = (1, 2, 3)
"""Cursors of receipts where no stamp can be used. 0 would mean that the follower has no rows."""
PAGE_CURSORS: Final = (4, 5, 6)
"""Cursors of pages where no stamp can be used: pages of rows as they are, or of repeated content.
"""
CURSOR_PUSHED_BEFORE_PULL: Final = RECEIPT_CURSORS[0]
"""The cursor of a follower that has pushed and has read nothing."""
DELIVERIES_ASSUMED_READ: Final = 2
"""How often a page is sent, each time before a push, until newer pages are sent."""
LOST_PAGES_MAX: Final = 1
"""How often a page is repeated unchanged. After that, applying it may have failed, and its rows are
sent as they are."""
FAILED_PAGES_MAX: Final = 5
"""How often in succession a page has no effect until its tables count as unknown to the app, unless
a page with them is proven."""
RESEND_ROWS_MAX: Final = 500
"""Rows that a follower is sent beside the log. If there are more, it is sent everything again."""

SKIPPED_DELIVERIES: Final = 2
"""Proven pages that must contain a row with an edit that may still be in the queue: because of that
edit, the follower may skip parts of the row in the first one."""


def arrived(
    known: Follower | None, cursor: Stamp, visible: Callable[[], Iterable[str]] = tuple
) -> Follower:
    """Return the state of a follower that sends a cursor.

    Its `page_from` is where the next page begins.

    Args:
        known: the stored state; None if there is none.
        visible: gives the tables that it may see now, of which it has rows if the cursor is that of
            a checkpoint.
    """
    is_made = cursor <= PAGE_CURSORS[-1]
    if known is None:
        there = START if is_made else Position(cursor)
        holds = cursor > 0
        return Follower(
            cursor, there, there, there,
            holds_rows=holds, holds_own=holds and is_made, rows_again=holds,
            tables=() if is_made else tuple(sorted(visible())),
        )  # fmt: skip
    holds_rows = known.holds_rows or cursor > 0
    at = replace(known, cursor=cursor, holds_rows=holds_rows, is_pending=False, by_receipt=False)
    if known.begins_again or (cursor == 0 and known.cursor):
        return begin_again(at)
    if cursor and cursor == known.page_cursor:
        return _proved(at) if known.is_pending else _from(at, at.proven)
    if cursor == receipt_cursor(known):
        return _pushed(at, assumed=known.is_pending and known.page_from == known.ahead)
    if cursor == known.cursor:
        return _not_applied(at) if known.is_pending else _from(at, at.proven)
    # A cursor of no stored answer: made by a tester, or issued by another process.
    if is_made:
        return begin_again(at)
    there = Position(cursor)
    return replace(
        _unsent(at), proven=there, ahead=there, page_from=there, lost=0, holds_own=False,
        tables=tuple(sorted({*at.tables, *visible()})),
    )  # fmt: skip


def begin_again(at: Follower) -> Follower:
    """Send everything again to a follower that may have some of it."""
    return replace(
        _may_hold(_unsent(at)), proven=START, ahead=START, page_from=START,
        lost=0, deliveries=0, begins_again=False,
    )  # fmt: skip


def may_begin_again(known: Follower) -> Follower:
    """Note that it asks for a checkpoint: it begins again, and may have rows on its disk."""
    again = known.begins_again or known.is_pending
    return replace(known, holds_rows=True, holds_own=True, begins_again=again)


def void(at: Follower, start: Position) -> Follower:
    """Send rows as they are, because the log does not reach back to where the page begins."""
    again = at.rows_again or at.holds_rows
    return replace(at, proven=start, ahead=start, page_from=start, rows_again=again)


def given(
    at: Follower, until: Position, *, sent: Iterable[str], has_more: bool, given_until: Stamp = 0
) -> Follower:
    """Return the state of a follower after a page was sent.

    Args:
        at: what `arrived` gave.
        sent: the tables of which the page contains something.
        given_until: for rows as they are, the commits that they may include.
    """
    tables = tuple(sorted(sent))
    at = replace(
        at, page_until=until, page_cursor=_page_cursor(at, until, sent=bool(tables)),
        page_tables=tables, is_pending=bool(tables), page_has_more=has_more,
        given_until=max(at.given_until, until.since, given_until),
        again_until=max(at.again_until, given_until),
    )  # fmt: skip
    return at if tables else _moved(at)


def receipt_cursor(known: Follower | None) -> Stamp:
    """Return the cursor of a receipt: one that no page had, and that skips nothing."""
    if known is None:
        return CURSOR_PUSHED_BEFORE_PULL
    at = 0 if known.proven.snapshot else known.proven.since
    made = (at, at - 1, at - 2) if at > 2 * PAGE_CURSORS[-1] else RECEIPT_CURSORS
    return next(cursor for cursor in made if cursor not in {known.cursor, known.page_cursor})


def resending(known: Follower, rows: Iterable[Resend]) -> Follower:
    """Add rows that are to be sent as they are; of each row the latest `Resend` counts."""
    kept: dict[RowKey, Resend] = {(row.table, row.row_id): row for row in (*known.resend, *rows)}
    if len(kept) > RESEND_ROWS_MAX:
        return replace(known, resend=(), begins_again=True)
    return replace(known, resend=tuple(kept.values()))


def _proved(at: Follower) -> Follower:
    left = [row._replace(proofs=row.proofs - row.is_sent, is_sent=False) for row in at.resend]
    at = replace(
        _moved(at), lost=0, resend=tuple(row for row in left if row.proofs > 0),
        holds_own=at.holds_own and at.page_has_more,
        tables=tuple(sorted({*at.tables, *at.page_tables})),
        sent_tables=tuple(name for name in at.sent_tables if name not in at.page_tables),
        page_tables=(),
    )  # fmt: skip
    return _from(at, at.proven)


def _pushed(at: Follower, *, assumed: bool) -> Follower:
    """Continue behind a receipt: the last page may have been applied, or not."""
    deliveries = at.deliveries + assumed
    sent = {*at.sent_tables, *at.page_tables} - {*at.tables}
    at = replace(
        _may_hold(_unsent(at)), lost=0, deliveries=deliveries, by_receipt=True,
        sent_tables=tuple(sorted(sent)), page_tables=(),
    )  # fmt: skip
    if at.deliveries >= DELIVERIES_ASSUMED_READ:
        at = replace(at, ahead=at.page_until, deliveries=0)
    return _from(at, at.ahead)


def _not_applied(at: Follower) -> Follower:
    """Repeat the last page.

    It may contain a table that the app does not know: no page with it can be applied, so after some
    tries no earlier page with it counts as applied either, unless that is proven.
    """
    at = replace(_unsent(at), lost=at.lost + 1)
    if at.lost > FAILED_PAGES_MAX:
        sent = tuple(name for name in at.sent_tables if name not in at.page_tables)
        at = replace(at, sent_tables=sent)
    at = replace(at, page_tables=())
    failed = at.cursor > 0 and at.lost > LOST_PAGES_MAX
    return _from(_may_hold(at) if failed else at, at.proven)


def _from(at: Follower, start: Position) -> Follower:
    if start.is_behind(at.ahead):
        at = _may_hold(at)
    return replace(at, page_from=start)


def _may_hold(at: Follower) -> Follower:
    again_until = max(at.again_until, at.given_until)
    return replace(at, again_until=again_until, rows_again=True, holds_own=True)


def _moved(at: Follower) -> Follower:
    """Continue behind the last page, which was applied or empty."""
    deliveries = 0 if at.page_from == at.ahead else at.deliveries
    ahead = at.page_until if at.page_from == at.ahead else at.ahead
    proven = at.page_until if at.page_from == at.proven else at.proven
    if not proven.snapshot and ahead.is_behind(proven):
        ahead = proven
    return replace(at, proven=proven, ahead=ahead, deliveries=deliveries)


def _unsent(at: Follower) -> Follower:
    return replace(at, resend=tuple(row._replace(is_sent=False) for row in at.resend))


def _page_cursor(at: Follower, until: Position, *, sent: bool) -> Stamp:
    is_stamp = not until.snapshot and until.since > PAGE_CURSORS[-1]
    if is_stamp and not (sent and until.since == at.cursor):
        return until.since
    if not sent and not until.snapshot:
        return until.since
    return next(cursor for cursor in PAGE_CURSORS if cursor not in {at.cursor, at.page_cursor})


# --- what it may see ------------------------------------------------------------------------------


REPLACED_MAX: Final = 8
"""Replaced policies that are stored of a follower while its rows are sent again."""


def is_follower(request: Push | Pull) -> bool:
    """Return whether a request has none of the fields that only our own clients send."""
    if isinstance(request, Pull):
        marks = (request.removes, request.epoch, request.scope, request.snapshot)
        return not (request.own_cursor or any(marks))
    return not (request.own_cursor or request.atomic or request.epoch is not None)


def viewer_of(config: GatewayConfig, claims: Mapping[str, Any]) -> Viewer:
    """Return the decision about the rows that a client sees."""
    return Viewer(config.rules, claims, config.logged.generation)


def visible_tables(config: GatewayConfig, viewer: Viewer) -> list[str]:
    """Return the gateway's tables of which the rules can show a client rows."""
    return [table for table in {*config.schemas, *config.tables} if viewer.may_see(table)]


def in_scope(at: Follower, scope: str, policy: str) -> Follower:
    """Note the scope and policy of a request; if they changed, everything is sent again."""
    if at.scope not in {"", scope} and at.holds_rows:
        # The cursor of this request may be the only evidence of how much it has.
        again_until = max(at.again_until, at.page_from.since)
        before, earlier = at.policy, at.replaced
        at = begin_again(at)
        at = replace(at, again_until=max(at.again_until, again_until))
        replaced = (_until(before, at.again_until), *earlier)[:REPLACED_MAX]
        at = replace(at, replaced=replaced)
    elif not at.proven.snapshot and at.proven.since >= at.again_until:
        at = replace(at, replaced=())
    return replace(at, scope=scope, policy=policy)


def policy_of(rules: SyncRules, claims: Mapping[str, Any]) -> str:
    """Return rules and the token claims that they name as canonical JSON."""
    names = {claim.path[0] for claim in rules.claims()}
    named = {name: value for name, value in claims.items() if name in names}
    policy = {"rules": rules_to_json(rules), "claims": named}
    return json.dumps(policy, sort_keys=True, separators=(",", ":"))


class ReplacedPolicy(NamedTuple):
    """A policy that was in force before."""

    rules: SyncRules
    claims: Mapping[str, Any]
    until: Stamp
    """The last commit of which a page could bring anything by this policy."""


def _until(policy: str, until: Stamp) -> str:
    return json.dumps(json.loads(policy) | {"until": until}, separators=(",", ":"))


def replaced_policies(policies: Iterable[str]) -> Iterator[ReplacedPolicy]:
    for policy in policies:
        read = json.loads(policy)
        until = read.get("until", STAMP_MAX)
        yield ReplacedPolicy(rules_from_stored(read["rules"]), read["claims"], until)
