"""The audit records of gateways, in a DynamoDB table of their own.

They have a table of their own because they are kept when a gateway is deleted, and because nobody
may remove one: the function that writes them has no permission to. The keys are the gateway and the
record's id. Attributes: ``af`` after, ``bf`` before, ``cd`` code, ``e`` ended, ``ms`` milliseconds,
``oc`` outcome, ``op`` operation, ``ro`` role, ``rq`` request, ``tg`` target, ``us`` user, ``x``
when DynamoDB may remove it.

A record is put before the change and updated after it: two to fourteen write units together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from lakesync.buffer.answers import number, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.keys import check_gateway
from lakesync.buffer.requests import NEVER_WRITTEN, encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.ports import AuditOutcome, AuditQuery, AuditRecord
from lakesync.ports.audit import STACK, id_of_time

READS_MAX: Final = 10
"""Reads of 1 MB that one page of records may take, if few records pass its filters."""
_LAST: Final = "g"
"""Above every id: ids begin with hexadecimal digits."""


def owner_of(gateway: str) -> str:
    """Return the id if it names an owner of records: a gateway, or the stack."""
    return gateway if gateway == STACK else check_gateway(gateway)


def bounds(query: AuditQuery) -> tuple[str, str]:
    """Return the lowest and the highest sort key that a query may return, both inclusive."""
    highest = _LAST if query.until_ms is None else id_of_time(query.until_ms)
    return id_of_time(query.since_ms), min(highest, query.below or _LAST)


class DynamoAudit(TableCalls):
    """`lakesync.ports.AuditStore` in a DynamoDB table."""

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        """Write a record; a write unit for each KB."""
        item = {
            **key(owner_of(record.gateway), record.id),
            "ms": number_of(record.at_ms),
            "us": text_of(record.user),
            "ro": text_of(record.role),
            "op": text_of(record.operation),
            "tg": text_of(record.target),
            "rq": text_of(record.request),
            "bf": text_of(record.before),
            "oc": text_of(record.outcome.value),
            "x": number_of(keep_until_s),
        }
        body = {"TableName": self._table, "Item": item, "ConditionExpression": NEVER_WRITTEN}
        # Ids are unique: an existing record was written by a try whose answer was lost.
        self._conditionally("PutItem", encode(body))

    def end(self, record: AuditRecord) -> None:
        """Write a record's outcome; a write unit for each KB."""
        values = {
            ":af": text_of(record.after),
            ":oc": text_of(record.outcome.value),
            ":cd": text_of(record.code),
            ":e": number_of(record.ended_ms),
            ":begun": text_of(AuditOutcome.STARTED.value),
        }
        change = "SET af = :af, oc = :oc, cd = :cd, e = :e"
        self._updated((owner_of(record.gateway), record.id), change, "oc = :begun", values)

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first; half a read unit for each 4 KB that is read."""
        records: list[AuditRecord] = []
        last: dict[str, Any] = {}
        for _ in range(READS_MAX):
            answer = self._read("Query", self._request(gateway, query, last))
            for item in answer["Items"]:
                if text(item, "sk") == query.below:
                    continue
                if len(records) == query.limit:
                    return records, records[-1].id
                records.append(_record(item))
            last = answer.get("LastEvaluatedKey", {})
            if not last:
                return records, ""
        return records, text(last, "sk")

    def _request(self, gateway: str, query: AuditQuery, last: dict[str, Any]) -> bytes:
        low, high = bounds(query)
        values = {":pk": text_of(owner_of(gateway)), ":low": text_of(low)}
        values[":high"] = text_of(high)
        wanted = {"us": query.user, "op": query.operation}
        filters = [f"{name} = :{name}" for name, value in wanted.items() if value]
        values |= {f":{name}": text_of(value) for name, value in wanted.items() if value}
        return encode(
            {
                "TableName": self._table,
                "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
                "ExpressionAttributeValues": values,
                "ScanIndexForward": False,
                **({"FilterExpression": " AND ".join(filters)} if filters else {}),
                # One more than requested, and the last one of the page before.
                **({} if filters else {"Limit": query.limit + 2}),
                **({"ExclusiveStartKey": last} if last else {}),
            }
        )


def _record(item: dict[str, Any]) -> AuditRecord:
    begun = AuditRecord(
        text(item, "pk"), text(item, "sk"), number(item, "ms"), text(item, "us"), text(item, "ro"),
        text(item, "op"), text(item, "tg"), text(item, "rq"), text(item, "bf"),
    )  # fmt: skip
    if "af" not in item:
        return begun
    return replace(
        begun,
        after=text(item, "af"),
        outcome=AuditOutcome(text(item, "oc")),
        code=text(item, "cd"),
        ended_ms=number(item, "e"),
    )
