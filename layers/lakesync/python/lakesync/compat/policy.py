"""Which clients are followers, and the rules and claims that decide which rows they see.

When these change, everything is sent again, with deletes of the rows that are no longer visible.
Law F3: ``docs/spec/followers.md``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.compat.progress import begin_again
from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.core.rules import rules_from_stored, rules_to_json
from lakesync.core.visibility import Viewer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lakesync.compat.follower_state import Follower
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import Push
    from lakesync.core.rules import SyncRules

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
    """Return a policy as it is stored once another has replaced it."""
    return json.dumps(json.loads(policy) | {"until": until}, separators=(",", ":"))


def replaced_policies(policies: Iterable[str]) -> Iterator[ReplacedPolicy]:
    """Read the policies that were replaced."""
    for policy in policies:
        read = json.loads(policy)
        until = read.get("until", STAMP_MAX)
        yield ReplacedPolicy(rules_from_stored(read["rules"]), read["claims"], until)
