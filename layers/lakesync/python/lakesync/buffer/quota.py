"""The usage and quotas of gateways: one item for each, in the buffer's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys
from lakesync.buffer.answers import number
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.errors import Unavailable
from lakesync.ports import Quota, Usage, WindowUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOWS_AHEAD_MAX: Final = 12
"""Windows by which another process's clock may be ahead. A window further ahead was written by a
wrong clock, and is begun again: else nothing would be admitted until that time."""
_IS_ON: Final = "w BETWEEN :w AND :most"
_IS_OVER: Final = "attribute_not_exists(w) OR w < :w OR w > :most"
_USED: Final = ("np", "nd", "nb")
_MAY: Final = ("qp", "qd", "qb")
_TRIES: Final = 3


class DynamoQuotas(TableCalls):
    """`lakesync.ports.QuotaStore` in the buffer's DynamoDB table."""

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to the usage; one write unit, two if the window begins."""
        values = {":w": number_of(window), ":most": number_of(window + WINDOWS_AHEAD_MAX)}
        values |= {f":{name}": number_of(used) for name, used in zip(_USED, usage, strict=True)}
        added = ", ".join(f"{name} :{name}" for name in _USED)
        begun = ", ".join(f"{name} = :{name}" for name in _USED)
        for _ in range(_TRIES):
            item = self._update(gateway, f"ADD {added}", _IS_ON, values)
            item = item or self._update(gateway, f"SET w = :w, {begun}", _IS_OVER, values)
            if item is not None:
                used = Usage(*(number(item, name) for name in _USED))
                return WindowUsage(number(item, "w"), used, _quota(item))
        raise Unavailable("reports of what is used crossed; nothing was added")

    def quota(self, gateway: str) -> Quota:
        """Return a gateway's quota; a read unit."""
        return _quota(self._get(keys.quota_pk(gateway), keys.QUOTA))

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use; a write unit."""
        limits = dict(zip(_MAY, quota, strict=True))
        changes = []
        if kept := [name for name, limit in limits.items() if limit is not None]:
            changes.append("SET " + ", ".join(f"{name} = :{name}" for name in kept))
        if gone := [name for name in limits if name not in kept]:
            changes.append("REMOVE " + ", ".join(gone))
        body: dict[str, Any] = {
            "TableName": self._table,
            "Key": key(keys.quota_pk(gateway), keys.QUOTA),
            "UpdateExpression": " ".join(changes),
        }
        if kept:
            values = {f":{name}": number_of(limits[name] or 0) for name in kept}
            body["ExpressionAttributeValues"] = values
        self._call("UpdateItem", encode(body))

    def _update(
        self, gateway: str, change: str, condition: str, values: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        return self._updated((keys.quota_pk(gateway), keys.QUOTA), change, condition, values)


def _quota(item: dict[str, Any]) -> Quota:
    return Quota(*(number(item, name) if name in item else None for name in _MAY))
