"""Transactions: two phases, in which each partition locks its items and later lets go of them.

Whatever becomes of the caller, a transaction that has arrived goes on. Its partitions are asked at
slightly different moments of the first phase: each checks its items, and locks those that pass.
An item that another transaction has locked is a conflict. If any item did not pass, all are let go
of at the end of the phase, so two transactions that cross may cancel each other. Else the items
become visible partition by partition in the last part of the second phase; only then are they free.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from benchmarks.scale import latency
from benchmarks.scale.actions import Action, Refused, action_of, known_only, size_of
from benchmarks.scale.items import write_units
from benchmarks.scale.updates import UpdateRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from benchmarks.scale.expressions import Item
    from benchmarks.scale.items import Bill, Items, Key
    from benchmarks.scale.ports import Clock

ACTIONS_MAX: Final = 100
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
ARRIVES: Final = 0.05
PREPARED: Final = 0.15
"""When the partitions are asked: between these parts of a transaction's duration."""
CANCELLED: Final = 0.5
"""When a transaction that did not pass is over, and lets go of its items."""
VISIBLE: Final = 0.85
ENDED: Final = 0.99
"""Between these its items become visible."""
_MESSAGES: Final = {
    "TransactionConflict": "Transaction is ongoing for the item",
    "ConditionalCheckFailed": "The conditional request failed",
    "ValidationError": "The update cannot be carried out",
    "ThrottlingError": "Throughput exceeds the current capacity of your table",
}


class Table(Protocol):
    """What a transaction needs of the table."""

    items: Items
    bill: Bill
    is_instant: bool

    def pays_write(self, key: Key, units: float) -> bool:
        """Bill a write, unless the partition refuses it; returns whether it does not."""
        ...

    def pays_read(self, pk: str, between: tuple[str, str], units: float) -> bool:
        """Bill a read, unless the partition refuses it."""
        ...

    def carry_out(self, action: Action, after: Item | None) -> None:
        """Store what an action makes."""
        ...


@dataclass
class _Transaction:
    actions: list[Action]
    reasons: list[dict[str, Any]]
    """Why each action did not pass; its code is ``None``, as text, if it did."""
    made: dict[int, Item | None] = field(default_factory=dict)
    """The next versions of the items that are locked."""
    old: dict[int, Item] = field(default_factory=dict)
    """Items that lost their condition and are given back."""

    @property
    def passed(self) -> bool:
        return all(reason["Code"] == "None" for reason in self.reasons)


class Transactions:
    """The transactions of one table."""

    def __init__(self, table: Table, clock: Clock, random: Random) -> None:
        self._table = table
        self._clock = clock
        self._random = random
        self._locks: dict[Key, _Transaction] = {}
        self._tokens: dict[str, tuple[bytes, bool]] = {}
        """The digest of what was asked under a token, and whether it is done. DynamoDB forgets
        them after ten minutes, which no caller here waits for."""

    def is_locked(self, key: Key) -> bool:
        """Return whether a transaction is working on an item."""
        return key in self._locks

    def write(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Carry out a ``TransactWriteItems``, and let its caller wait for it.

        Raises:
            Refused: it was cancelled, or is not valid; nothing was done.
        """
        known_only(request, "TransactItems ClientRequestToken")
        token = request.get("ClientRequestToken", "")
        digest = sha256(body).digest()
        actions = [_action(one) for one in request["TransactItems"]]
        _check(actions, body)
        if token in self._tokens:
            return self._again(actions, token, digest)
        if token:
            self._tokens[token] = digest, False
        transaction = _Transaction(actions, [{"Code": "None"} for _ in actions])
        self._carry_out(transaction, token)
        if transaction.passed:
            return {}
        for reason in transaction.reasons:
            if reason["Code"] != "None":
                self._table.bill.refusals[reason["Code"]] += 1
        for place, item in transaction.old.items():
            transaction.reasons[place] = {**transaction.reasons[place], "Item": item}
        raise Refused.cancelled(transaction.reasons)

    def _carry_out(self, transaction: _Transaction, token: str) -> None:
        by_partition: dict[str, list[int]] = defaultdict(list)
        for place, action in enumerate(transaction.actions):
            by_partition[action.key[0]].append(place)
        groups = list(by_partition.values())
        if self._table.is_instant:
            for places in groups:
                self._prepare(transaction, places)
            self._decided(transaction, groups, token, 0)
            return
        takes_ms = latency.TRANSACT_WRITE.draw_ms(self._random)
        takes_ms += (len(transaction.actions) - 1) * latency.ITEM_MS
        asked = 0

        def prepare(places: list[int]) -> None:
            nonlocal asked
            self._prepare(transaction, places)
            asked += 1
            if asked == len(groups):
                self._decided(transaction, groups, token, takes_ms)

        for places in groups:
            share = ARRIVES + (PREPARED - ARRIVES) * self._random.random()
            self._clock.later(takes_ms * share, partial(prepare, places))
        self._clock.sleep_ms(takes_ms * CANCELLED)
        if transaction.passed:
            self._clock.sleep_ms(takes_ms * (1 - CANCELLED))

    def _decided(
        self, transaction: _Transaction, groups: list[list[int]], token: str, takes_ms: float
    ) -> None:
        """Let go of a transaction's items once it is cancelled, or let them become visible."""
        if not transaction.passed:
            self._tokens.pop(token, None)
            wait_ms = takes_ms * (CANCELLED - PREPARED)
            self._after(wait_ms, lambda: self._let_go(transaction))
            return
        for places in groups:
            share = VISIBLE + (ENDED - VISIBLE) * self._random.random() - PREPARED
            self._after(takes_ms * share, partial(self._commit, transaction, places))
        if token:
            self._after(takes_ms * (ENDED - PREPARED), lambda: self._done(token))

    def _after(self, milliseconds: float, act: Callable[[], object]) -> None:
        if milliseconds:
            self._clock.later(milliseconds, act)
        else:
            act()

    def _done(self, token: str) -> None:
        self._tokens[token] = self._tokens[token][0], True

    def _again(self, actions: list[Action], token: str, digest: bytes) -> dict[str, Any]:
        before, is_done = self._tokens[token]
        if before != digest:
            raise Refused("IdempotentParameterMismatchException", "the token has another request")
        if not is_done:
            raise Refused("TransactionInProgressException", "the transaction is in progress")
        for action in actions:
            size = self._table.items.size_bytes(action.key)
            pk, sk = action.key
            self._table.pays_read(pk, (sk, sk), 2 * max(1, -(-size // 4096)))
        return {}

    def _prepare(self, transaction: _Transaction, places: list[int]) -> None:
        for place in places:
            action = transaction.actions[place]
            code, after = self._verdict(transaction, place)
            units = 2 * write_units(self._table.items.size_bytes(action.key), size_of(after))
            if not self._table.pays_write(action.key, units):
                code = "ThrottlingError"
            if code == "None":
                self._locks[action.key] = transaction
                transaction.made[place] = after
            else:
                transaction.reasons[place] = {"Code": code, "Message": _MESSAGES[code]}

    def _verdict(self, transaction: _Transaction, place: int) -> tuple[str, Item | None]:
        """Return why an item does not pass, or ``None``, as text; and what it would become."""
        action = transaction.actions[place]
        before = self._table.items.get(action.key)
        if action.key in self._locks:
            return "TransactionConflict", None
        if not action.condition(before or {}, action.bound):
            if before and action.gives_old_on_failure:
                transaction.old[place] = before
            return "ConditionalCheckFailed", None
        try:
            return "None", action.make(before)
        except UpdateRefused:
            return "ValidationError", None

    def _commit(self, transaction: _Transaction, places: list[int]) -> None:
        for place in places:
            action = transaction.actions[place]
            self._table.carry_out(action, transaction.made[place])
            del self._locks[action.key]

    def _let_go(self, transaction: _Transaction) -> None:
        for place in transaction.made:
            del self._locks[transaction.actions[place].key]


def _action(one: dict[str, Any]) -> Action:
    ((kind, inner),) = one.items()
    return action_of(kind, inner)


def _check(actions: list[Action], body: bytes) -> None:
    if not 1 <= len(actions) <= ACTIONS_MAX:
        raise Refused("ValidationException", f"a transaction has 1 to {ACTIONS_MAX} items")
    if len({action.key for action in actions}) < len(actions):
        raise Refused("ValidationException", "a transaction has each item once at the most")
    if len(body) > REQUEST_BYTES_MAX * 4 / 3:
        raise Refused("ValidationException", "a transaction has 4 MB at the most")
