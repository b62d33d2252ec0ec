"""Push: check everything that can fail, cut into commits, commit; then the receipt.

The receipt is the outcomes, added up commit by commit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lakesync.core.clock import check_drift
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.core.rules import NO_RULES
from lakesync.core.schema import check_delta
from lakesync.core.visibility import Viewer
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    Conflict,
    Contention,
    Forbidden,
    LakeSyncError,
    SchemaMismatch,
    TableNotDeclared,
    TooManyTables,
    ValidationFailed,
)
from lakesync.log.commit import Committer, ConfigChanged, cut
from lakesync.log.declare import NOT_DECLARED, Declare, Declaring, admitting
from lakesync.log.lanes import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push
    from lakesync.log.commit import Admitted, Outcome
    from lakesync.ports import Buffer, Chance, WallClock

_BY_CONFIGURATION = (SchemaMismatch, *NOT_DECLARED)
"""Refusals that no condition protects: the configuration may have changed in the meantime."""
_CHANGING = "the gateway's configuration keeps changing; push again in a moment"


class PushService:
    """Accepts pushes for any gateway. One for each process; one request at a time."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        sleep_ms: Callable[[float], None],
        chance: Chance,
        limits: Limits = DEFAULT_LIMITS,
        on_threshold: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._wall_clock = wall_clock
        self._declare = Declare(buffer, wall_clock=wall_clock, sleep_ms=sleep_ms, chance=chance)
        self._committer = Committer(
            buffer,
            wall_clock=wall_clock,
            sleep_ms=sleep_ms,
            chance=chance,
            limits=limits,
            on_threshold=on_threshold,
        )

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Make a client's deltas durable; each delta is accepted or refused separately.

        Cost of a push of 100 deltas to as many small rows of one shard, in a warm process: one
        round trip and about 210 write units; cold, or after another writer, two more round trips
        and 99 read units.

        Returns:
            The receipt, with an outcome for each delta that was not simply accepted.

        Raises:
            AnotherGateway: the client belongs to another one; nothing was written.
            AtomicPushTooLarge, Backpressure, CursorExpired, Contention, Unavailable: assume that
            nothing of the push is durable; repeating it is always safe.
            GatewayDeleted: the gateway was deleted, with everything that was accepted of the push.
        """
        # The clock is read once: a retry may not refuse, as too new, a delta that was accepted.
        begun_ms = self._wall_clock()
        deadline_ms = begun_ms + self._limits.commit_deadline_ms
        attempt = 0
        self._committer.make_room()
        while True:
            try:
                return self._push(gateway, push, begun_ms, deadline_ms)
            except ConfigChanged:
                # Deltas that are committed already are then duplicates.
                attempt = self._committer.wait(attempt, deadline_ms, Contention(_CHANGING))

    def _push(self, gateway: str, push: Push, begun_ms: int, deadline_ms: int) -> PushReceipt:
        config = self._committer.config(gateway)
        config.check_not_deleted()
        tables = [delta.table for _, delta in push.deltas]
        self._committer.check_gateway(gateway, push.epoch, tables, deadline_ms=deadline_ms)
        admitted, refused = self._admit(config, push, begun_ms)
        if any(isinstance(item.error, _BY_CONFIGURATION) for item in refused):
            # No condition protects a refusal, and the schemas may have changed in the meantime.
            self._committer.check_config(gateway)
        if not (push.atomic and refused) and self._declares(
            gateway, config, push, admitted, refused
        ):
            return self._push(gateway, push, begun_ms, deadline_ms)
        receipt = Receipt(push, refused)
        if push.atomic and refused:
            receipt.refuse_all(admitted)
            return self._done(gateway, receipt)
        cuts = cut(admitted, config, self._limits)
        parts = deque(part._replace(epoch=push.epoch, revives=push.revives) for part in cuts)
        if push.atomic and len(parts) > 1:
            raise AtomicPushTooLarge(
                f"an atomic push must fit one commit: {self._limits.commit_items_max} items and "
                f"{self._limits.entry_bytes_max} bytes; make the transaction smaller"
            )
        self._committer.prepare(gateway, parts, deadline_ms=deadline_ms)
        viewer = Viewer(NO_RULES if push.trusted else config.rules, push.claims)
        while parts:
            part = parts.popleft()
            outcome = self._committer.commit(
                gateway, part, viewer, deadline_ms=deadline_ms, atomic=push.atomic
            )
            if outcome.refused:
                # Nor does one protect these, and rules may allow them by now.
                self._committer.check_config(gateway)
            receipt.add(outcome)
            if outcome.rest:
                parts.appendleft(part._replace(shards=outcome.rest))
            if push.atomic and outcome.refused:
                guilty = {item[0] for item, _ in outcome.refused}
                others = [item for item in admitted if item[0] not in guilty]
                receipt.refuse_all(others)
                break
        return self._done(gateway, receipt)

    def _done(self, gateway: str, receipt: Receipt) -> PushReceipt:
        return receipt.done(self._wall_clock(), self._committer.epoch(gateway))

    def _declares(
        self,
        gateway: str,
        config: GatewayConfig,
        push: Push,
        admitted: list[Admitted],
        refused: list[DeltaOutcome],
    ) -> bool:
        """Declare tables and columns that are pushed for the first time; returns whether any were.

        After the declaration, no commit is made with a configuration that lacks them. Deltas with
        names that cannot be declared are refused.
        """
        new = [item for item in admitted if not config.knows_names(item[1])]
        if not new:
            return False
        user, names = _user_of(push), [delta for _, delta in new]
        try:
            self._declare(gateway, lambda config: admitting(config, user, names))
        except Conflict as error:  # the configuration is full before there are `TABLES_MAX`
            refused += [
                refusal(index, delta.delta_id, TooManyTables(error.message, field="table"))
                for index, delta in new
            ]
            admitted[:] = [item for item in admitted if item not in new]
            return False
        self._committer.forget(gateway)
        return True

    def _admit(
        self, config: GatewayConfig, push: Push, now_ms: int
    ) -> tuple[list[Admitted], list[DeltaOutcome]]:
        """Split a push into deltas that may be committed and outcomes of those that may not."""
        admitted: list[Admitted] = []
        declaring = Declaring(config, _user_of(push))
        refused = [refusal(item.index, item.delta_id, item.error) for item in push.unreadable]
        for index, delta in push.deltas:
            try:
                self._check(config, push, delta, now_ms)
                # Of two spellings in one push, too, the first stands.
                declaring.admit(delta)
            except LakeSyncError as error:
                refused.append(refusal(index, delta.delta_id, error))
            else:
                admitted.append((index, delta))
        return admitted, refused

    def _check(self, config: GatewayConfig, push: Push, delta: Delta, now_ms: int) -> None:
        if delta.client_id != push.client_id:
            raise Forbidden("a delta's clientId must be that of its push", field="clientId")
        check_drift(delta.hlc, now_ms)
        schema = config.schemas.get(delta.table)
        if schema is None and config.strict:
            raise TableNotDeclared(
                f"table {delta.table} has no schema, and this gateway accepts none without; it is "
                "tried again once one is registered",
                field="table",
            )
        if schema is not None:
            check_delta(schema, delta, typed=push.typed)
            if schema.append and delta.op.name != "INSERT":
                raise ValidationFailed(
                    f"{delta.table} is an append table: its rows are inserted, never changed",
                    field="op",
                )


def _user_of(push: Push) -> str | None:
    """Return the user to whom the names that a push declares are counted; None if it is trusted."""
    return None if push.trusted else str(push.claims.get("sub") or push.client_id)


# --- the receipt ----------------------------------------------------------------------------------


_REFUSED_WITH_OTHERS = (
    "the push is atomic and another of its deltas was refused; correct that one, then push again"
)


class Receipt:
    """Adds up the outcomes of a push."""

    def __init__(self, push: Push, refused: list[DeltaOutcome]) -> None:
        self._accepted = len(push.deltas) + len(push.unreadable) - len(refused)
        self._outcomes = refused
        self._stamp: Stamp = 0

    def add(self, outcome: Outcome) -> None:
        self._stamp = max(self._stamp, outcome.stamp)
        self._accepted -= len(outcome.refused)
        self._outcomes += [
            DeltaOutcome(index, delta.delta_id, OutcomeKind.DUPLICATE)
            for index, delta in outcome.duplicates
        ]
        self._outcomes += [
            refusal(index, delta.delta_id, error) for (index, delta), error in outcome.refused
        ]

    def refuse_all(self, others: list[Admitted]) -> None:
        """Count an atomic push of which nothing was committed."""
        self._accepted = 0
        kept = [outcome for outcome in self._outcomes if outcome.kind is OutcomeKind.REFUSED]
        self._outcomes = kept + [
            refusal(index, delta.delta_id, AtomicPushRefused(_REFUSED_WITH_OTHERS))
            for index, delta in others
        ]

    def done(self, now_ms: int, epoch: str) -> PushReceipt:
        outcomes = tuple(sorted(self._outcomes, key=lambda outcome: outcome.index))
        return PushReceipt(self._stamp, self._accepted, outcomes, now_ms, epoch)


def refusal(index: int, delta_id: str, error: LakeSyncError) -> DeltaOutcome:
    return DeltaOutcome(index, delta_id, OutcomeKind.REFUSED, error)
