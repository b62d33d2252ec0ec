"""Who may see and write what, in the most obvious way, from the JSON of the rules as it was saved.

Written from ``docs/spec/visibility.md`` alone: nothing that decides visibility in `lakesync` is
used here. Values are text, numbers and booleans; rules of the simulation compare nothing else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tests.simulation.model import Row, row_of, seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.delta import Delta

RulesJson: TypeAlias = "Mapping[str, Any]"
Claims: TypeAlias = "Mapping[str, Any]"
NO_RULES: RulesJson = {"buckets": []}


SPELLED: dict[str, tuple[str, Any]] = {
    "1e-99999999999999999999": ("number", 5e-324),
    "1e99999999999999999999": ("number", float("inf")),
    "-1e99999999999999999999": ("number", -float("inf")),
    "-0": ("number", 0),
    "0e99999999999999999999": ("number", 0),
    "10": ("number", 10),
    "9" * 200: ("number", 1e200),
    "2024-02-29T12:00:00Z": ("instant", 1),
    "2024-02-29T13:00:00.000000001+01:00": ("instant", 2),
    "9999-12-31T23:59:59.999999999-23:59": ("instant", 3),
}
"""Texts that spell a number or an instant, as a person reads them: what it is, and its place."""
TOO_LONG = ("9" * 300, "é" * 200)
"""Texts that match nothing."""
HOSTILE: tuple[Any, ...] = (
    *SPELLED, *TOO_LONG, "", " ", "1e", "0x10", "+1", "01", "1_0", "\u0661\u0662", "NaN", "inf",
    "2024-02-30T12:00:00Z", "2024-02-29T24:00:00Z", "0000-00-00", "null", "true",
    "\ufeff", "\ufffe", "\U0010ffff", "a\u0000b", "'; DROP TABLE rows; --", "%s{0}\\", "\u202e",
    "I\u0307", 1e308, -1e308, 5e-324, -0.0, 2**53, -(2**53), 0.1 + 0.2, True, None, [[]],
    {"": {"": []}},
)  # fmt: skip
"""Values as an enemy would choose them."""


class Eyes(NamedTuple):
    """Rules, and the claims of one client."""

    rules: RulesJson
    claims: Claims

    @property
    def see_everything(self) -> bool:
        """Return whether the client is sent every row of every table, with all of its columns."""
        return self._see_every_row and all(map(self._is_excepted, self._omissions))

    @property
    def _see_every_row(self) -> bool:
        return not self.rules["buckets"]

    @property
    def _omissions(self) -> list[dict[str, Any]]:
        omissions: list[dict[str, Any]] = self.rules.get("omit", [])
        return omissions

    def see(self, table: str, row: Row) -> bool:
        """Return whether the client may see a row: some bucket covers it, all its filters hold."""
        return self._shows(table, seen(table, row))

    def _shows(self, table: str, row: Row) -> bool:
        if row.values is None:
            return False
        return self._see_every_row or any(
            self._all_hold(bucket["filters"], row) for bucket in self._covering(table)
        )

    def see_all_of(self, table: str) -> bool:
        """Return whether no row of a table is ever hidden: then all are sent, as without rules."""
        return self._see_every_row or any(not item["filters"] for item in self._covering(table))

    def may_write(self, table: str, before: Row, after: Row) -> bool:
        """Return whether the client may change a row so, as it was before a commit."""
        if not any(after.columns.get(name) == one for name, one in before.columns.items()):
            before = seen(table, before)
        filters = [bucket["write"] for bucket in self._covering(table) if "write" in bucket]
        if not filters:
            return self._see_every_row or not before.exists or self._shows(table, before)
        return all(
            any(self._all_hold(each, row) for each in filters)
            for row in (before, after)
            if row.exists
        )

    def left_out(self, table: str) -> frozenset[str]:
        """Return the columns of a table that the client is not sent, and may not write."""
        return frozenset(
            name.lower()
            for each in self._omissions
            if not each["tables"] or table in each["tables"]
            if not self._is_excepted(each)
            for name in each["columns"]
        )

    def shown(self, table: str, row: Row) -> Row:
        """Return what the client is sent of a row that it sees."""
        left_out = self.left_out(table)
        kept = {name: one for name, one in row.columns.items() if name.lower() not in left_out}
        return row._replace(columns=kept)

    def _is_excepted(self, omission: Mapping[str, Any]) -> bool:
        conditions = omission.get("except", [])
        return bool(conditions) and all(map(self._claim_passes, conditions))

    def _claim_passes(self, item: Mapping[str, Any]) -> bool:
        operands = self._operands(item["value"])
        passed = [
            holds(item["op"], value, operands) for value in self._operands(f"jwt:{item['claim']}")
        ]
        return bool(passed) and (all(passed) if item["op"] == "neq" else any(passed))

    def _covering(self, table: str) -> list[dict[str, Any]]:
        return [
            bucket
            for bucket in self.rules["buckets"]
            if not bucket["tables"] or table in bucket["tables"]
        ]

    def _all_hold(self, filters: Sequence[Mapping[str, Any]], row: Row) -> bool:
        values = row.values or {}
        for item in filters:
            raw = values.get(item["column"])
            value = None if raw is None else json.loads(raw)
            if not holds(item["op"], value, self._operands(item["value"])):
                return False
        return True

    def _operands(self, value: object) -> list[Any]:
        if isinstance(value, str) and value.startswith("jwt:"):
            claim: Any = self.claims
            for name in value[4:].split("."):
                claim = claim.get(name) if isinstance(claim, dict) else None
            value = claim
        claim = value if isinstance(value, list) else [value]
        return [item for item in claim if isinstance(item, str | int | float)]


def holds(op: str, value: object, operands: list[Any]) -> bool:
    """Return whether a column's value passes a filter."""
    if not isinstance(value, str | int | float) or not operands or value in TOO_LONG:
        return False
    equal = [_kind(value) == _kind(each) and value == each for each in operands]
    if op in {"eq", "in"}:
        return any(equal)
    if op == "neq":
        return not any(equal)
    (kind, key), (its_kind, its_key) = _in_order(value), _in_order(operands[0])
    if len(operands) > 1 or kind != its_kind or kind == "boolean":
        return False
    less, same = key < its_key, key == its_key
    order = {"lt": less, "lte": less or same, "gt": not (less or same), "gte": not less}
    return bool(order[op])


def _in_order(value: Any) -> tuple[str, Any]:
    """Return what a value is in an order, and where it stands among its kind."""
    spelled = SPELLED.get(value) if isinstance(value, str) else None
    return spelled or (_kind(value), value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


class Moments:
    """One row at each of its commits."""

    def __init__(self, commits: Iterable[tuple[int, Delta]]) -> None:
        self._commits = sorted(commits, key=lambda item: item[0])

    def until(self, stamp: int) -> Row:
        """Return the row as it was after everything that was committed up to a stamp."""
        return row_of(delta for at, delta in self._commits if at <= stamp)

    def since(self, stamp: int) -> list[Row]:
        """Return the row as it was then, and after each later commit."""
        later = sorted({at for at, _ in self._commits if at > stamp})
        return [self.until(at) for at in (stamp, *later)]

    def made_of(self, sent: Delta, left_out: frozenset[str]) -> list[tuple[int, Delta]]:
        """Get the deltas that are what was sent, but for columns left out, with their commits."""
        return [(at, delta) for at, delta in self._commits if is_left_of(sent, delta, left_out)]

    def made_by(self, stamp: int) -> Row:
        """Return what the deltas of one commit make of nothing."""
        return row_of(delta for at, delta in self._commits if at == stamp)


def is_left_of(sent: Delta, delta: Delta, left_out: frozenset[str]) -> bool:
    """Return whether a delta is what was sent, but for columns that are left out of it."""
    left = tuple(column for column in delta.columns if column[0].lower() not in left_out)
    return (sent.hlc, sent.client_id, sent.columns) == (delta.hlc, delta.client_id, left)


def may_be_sent(
    delta: Delta, row: Moments, begun: int, eyes: Iterable[Eyes], *, event: bool
) -> bool:
    """Return whether a client may be sent a delta of a page: it has no column that is left out.

    Either it is what is left of a delta that was made: then the row was to be seen before and after
    its commit, or was deleted by it, or came into sight by it and is no more than the commit made
    it. Or it is a part of the row as it is: then that is to be seen, at some moment while the
    request was under way.

    Args:
        delta: what was sent.
        row: its row.
        begun: the last commit that was visible when the request began.
        eyes: the rules that were in force in the meantime.
        event: its table keeps no rows; the delta is all there is.
    """
    table = delta.table
    for each in eyes:
        left_out = each.left_out(table)
        if any(name.lower() in left_out for name, _ in delta.columns):
            continue
        made = row.made_of(delta, left_out)
        events = [whole for _, whole in made] or [delta]
        if each.see_all_of(table) or (
            event and any(each.see(table, row_of([whole])) for whole in events)
        ):
            return True
        if event:
            continue
        for commit, _ in made:
            before, after = row.until(commit - 1), row.until(commit)
            if each.see(table, before) and (each.see(table, after) or delta.op.name == "DELETE"):
                return True
            if each.see(table, after) and row.made_by(commit).columns == after.columns:
                return True
        if any(each.see(table, now) and is_part(delta, now) for now in row.since(begun)):
            return True
    return False


def is_part(delta: Delta, row: Row) -> bool:
    if delta.op.name == "DELETE":
        return row.deleted >= delta.hlc
    client = delta.client_id.encode()
    return all(row.columns.get(name) == (delta.hlc, client, value) for name, value in delta.columns)


def own_only(row: Row, clients: Iterable[str]) -> bool:
    names = {client.encode() for client in clients}
    return all(client in names for _, client, _ in row.columns.values())
