"""Followers: existing clients, whose cursor a receipt moves as well as a page.

Rules of this module
    1. A receipt never leads a follower past what it has. It gives the cursor that the follower last
       came with; only where that shows nothing (it pushes in every round) one that it was given
       twice.
    2. So it is given things again, and it cannot tell: what it may hold is sent in a form that is
       right for who holds it and for who does not (`lakesync.compat.legacy_format`).
    3. It comes with nothing but a number. What else must be known is remembered here, in one item
       for each follower, which no other client ever costs anything.
    4. A client is no follower as soon as a request bears any mark of ours.

Why: ``docs/adr/0006-followers.md``. Laws F1-F5: ``docs/spec/followers.md``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.compat.legacy_format import InOrder
from lakesync.core.messages import OutcomeKind, PullPage
from lakesync.core.rules_json import rules_from_json, rules_to_json
from lakesync.core.visibility import Viewer
from lakesync.errors import Contention, CursorExpired, LakeSyncError, RulesRefused
from lakesync.ports import Follower
from lakesync.result import Err, Ok, Result
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import Pull, Push, PushReceipt
    from lakesync.core.rules import SyncRules
    from lakesync.gateway.pull import PullService
    from lakesync.gateway.push import PushService
    from lakesync.ports import Buffer, RowKey

BEGUN: Final = 1
"""The cursor of who has pushed and has read nothing: 0 would say that it holds nothing."""
TOLD: Final = 2
"""What was sent so often counts as read: who pushes in every round cannot say that it was."""
OWED_MAX: Final = 500
"""Rows that a follower wrote in vain and was not given back yet; older ones are forgotten."""
REPLACED_MAX: Final = 8
"""Scopes of before that are remembered of a follower while it is given its rows again."""


class FollowingPulls:
    """Answers pulls: those of followers by what is remembered of them, all others as they are."""

    def __init__(self, pulls: PullService, buffer: Buffer) -> None:
        self._pulls = pulls
        self._buffer = buffer

    def pull(self, gateway: str, pull: Pull) -> Result[PullPage, LakeSyncError]:
        """Give the next page; see `lakesync.gateway.pull.PullService.pull`.

        Cost for a follower, beside that: two read units; one for each row of the page; one write
        unit if it or the log moved.
        """
        if not pull.is_followers:
            return self._pulls.pull(gateway, pull)
        try:
            return Ok(self._pull(gateway, pull))
        except LakeSyncError as error:
            return Err(error)

    def _pull(self, gateway: str, pull: Pull) -> PullPage:
        config = self._buffer.config(gateway)
        viewer = _viewer(config, pull.claims)
        known = self._buffer.follower(gateway, pull.client_id)
        at = _arrived(known, pull, viewer.scope().text(), _eyes(config.rules, pull.claims))
        try:
            pages = self._pages(gateway, pull, at, config)
        except CursorExpired:
            self._buffer.save_follower(gateway, pull.client_id, replace(at, expired=True))
            raise
        if pages[0].scope != at.scope:
            raise Contention("the rules are just changing; try again in a moment")
        in_order = InOrder(
            self._buffer, gateway, config, viewer,
            again=at.holds_rows and at.read_from < at.again_until,
            mine=pull.client_id if at.holds_rows and at.followed else "",
        )  # fmt: skip
        while True:
            runs = [run for page in pages for run in page.records]
            logged = [delta for run in runs for delta in decode_records(run)]
            deltas = in_order.of(logged, at.owed)
            records = (encode_records(deltas),) if deltas else ()
            if sum(map(len, records)) <= pull.bytes_max or pull.deltas_max == 1:
                break
            # Rows as they are can be larger than what was logged. Nothing is recorded yet.
            fewer = min(pull.deltas_max, max(page.count for page in pages)) // 2
            pull = replace(pull, deltas_max=max(fewer, 1))
            pages = self._pages(gateway, pull, at, config)
        cursor = min(page.cursor for page in pages)
        more = any(page.has_more or page.cursor > cursor for page in pages)
        after = replace(_given(at, cursor, len(deltas)), more=more)
        if not at.followed and any(delta.client_id == pull.client_id for delta in logged):
            # A receipt got lost, and it cannot insert once more what waits to be pushed again.
            after = replace(after, page_until=at.read_from)
        if after != known:
            self._buffer.save_follower(gateway, pull.client_id, after)
        page = replace(pages[0], records=records, count=len(deltas), cursor=cursor)
        return replace(page, has_more=more)

    def _pages(
        self, gateway: str, pull: Pull, at: Follower, config: GatewayConfig
    ) -> list[PullPage]:
        """Read on; where its scope changed, also as it saw before, for what it sees no more."""
        # Past 0, a cursor without a scope asks for removals, where the log cannot tell of them.
        since = max(at.read_from, BEGUN) if at.holds_rows else at.read_from
        now = replace(pull, since=since, scope=at.scope if at.replaced else "")
        before = [
            replace(pull, since=since, rules=rules, claims=claims)
            for rules, claims in _seen_with(at.replaced, config)
        ]
        return [self._pulls.pull(gateway, asked).unwrap() for asked in (now, *before)]


class FollowingPushes:
    """Answers pushes: receipts of followers bear a cursor that is safe for them."""

    def __init__(self, pushes: PushService, buffer: Buffer) -> None:
        self._pushes = pushes
        self._buffer = buffer

    def push(self, gateway: str, push: Push) -> Result[PushReceipt, LakeSyncError]:
        """Make deltas durable; see `lakesync.gateway.push.PushService.push`.

        Cost for a follower, beside that: two read units, and with rules one for each row; one
        write unit if something was refused or is hidden from it.
        """
        result = self._pushes.push(gateway, push)
        if isinstance(result, Err) or not push.is_followers:
            return result
        try:
            known = self._buffer.follower(gateway, push.client_id)
            owed = self._in_vain(gateway, push, result.value)
            if owed:
                rows = tuple(dict.fromkeys([*owed, *(known.owed if known else ())]))[:OWED_MAX]
                known = replace(known or Follower(), owed=rows, owed_pages=0)
                self._buffer.save_follower(gateway, push.client_id, known)
        except LakeSyncError as error:
            return Err(error)  # what is durable comes back as duplicates
        return Ok(replace(result.value, server_hlc=_cursor_of(known)))

    def _in_vain(self, gateway: str, push: Push, receipt: PushReceipt) -> list[RowKey]:
        """Give the rows that the follower now holds otherwise than it may: no page would tell it.

        It reads nothing of a receipt but that it came.
        """
        refused = {item.index for item in receipt.outcomes if item.kind is OutcomeKind.REFUSED}
        keys = {(delta.table, delta.row_id): index in refused for index, delta in push.deltas}
        config = self._buffer.config(gateway)
        eyes = InOrder(self._buffer, gateway, config, _viewer(config, push.claims))
        hidden = eyes.hidden(key for key, is_refused in keys.items() if not is_refused)
        return [*hidden, *(key for key, is_refused in keys.items() if is_refused)]


def _cursor_of(known: Follower | None) -> Stamp:
    """Give the cursor with which a follower goes on after a push."""
    if known is None:
        return BEGUN
    return 0 if known.expired else max(known.proved, BEGUN)


def _arrived(known: Follower | None, pull: Pull, scope: str, eyes: str) -> Follower:
    """Give what there is to know of a follower that comes with a cursor."""
    since = pull.since if pull.since > BEGUN else 0
    held = known or Follower(scope=scope, eyes=eyes)
    at = replace(
        held, since=since, expired=False, scope=scope, eyes=eyes,
        holds_rows=held.holds_rows or pull.since > 0, followed=_has_followed(known, pull.since),
    )  # fmt: skip
    if at.followed and at.holds_rows:
        at = replace(at, again_until=max(held.again_until, held.given_until))
    if known is None or since != held.since:
        at = replace(at, read_from=since, page_until=since, proved=since)
    if scope != held.scope and at.holds_rows:
        return replace(
            at, read_from=0, page_until=0, proved=0,
            replaced=(held.eyes, *held.replaced)[:REPLACED_MAX],
            again_until=max(held.again_until, held.given_until, since),
        )  # fmt: skip
    return at if at.read_from < at.again_until else replace(at, replaced=())


def _has_followed(known: Follower | None, cursor: Stamp) -> bool:
    """Tell whether a cursor is a receipt's, or one behind such a cursor, or begins again.

    Whoever comes with the cursor of a page instead has pushed nothing since, and holds nothing of
    what comes; unless it could not apply it, and so comes a third time.
    """
    if known is None or cursor in {0, _cursor_of(known)}:
        return cursor in {0, _cursor_of(known)}
    if (cursor if cursor > BEGUN else 0) == known.since:
        return known.followed or known.proved > known.read_from
    return known.followed and known.more and cursor == known.page_until


def _given(at: Follower, cursor: Stamp, count: int) -> Follower:
    """Give what there is to know of it once it was sent a page."""
    if at.owed:
        left = at.owed if at.owed_pages + 1 < TOLD else ()
        at = replace(at, owed=left, owed_pages=at.owed_pages + 1)
    if not count:
        return replace(at, read_from=cursor, page_until=cursor, proved=cursor)
    # Given twice, and so told.
    proved = min(at.page_until, cursor) if at.page_until > at.read_from else at.read_from
    return replace(
        at, page_until=cursor, proved=proved, given_until=max(at.given_until, cursor)
    )  # fmt: skip


def _viewer(config: GatewayConfig, claims: Mapping[str, Any]) -> Viewer:
    return Viewer(config.rules, claims, config.logged.generation)


def _eyes(rules: SyncRules, claims: Mapping[str, Any]) -> str:
    """Give rules and the claims that they name as JSON, the same for the same ones."""
    names = {claim.path[0] for claim in rules.claims()}
    kept = {name: value for name, value in claims.items() if name in names}
    held = {"rules": rules_to_json(rules), "claims": kept}
    return json.dumps(held, sort_keys=True, separators=(",", ":"))


def _seen_with(
    replaced: Iterable[str], config: GatewayConfig
) -> Iterator[tuple[SyncRules, Mapping[str, Any]]]:
    """Read what `_eyes` gave; rules that no schema allows any more have shown nothing."""
    for eyes in replaced:
        held = json.loads(eyes)
        with suppress(RulesRefused):
            yield rules_from_json(held["rules"], config.schemas), held["claims"]
