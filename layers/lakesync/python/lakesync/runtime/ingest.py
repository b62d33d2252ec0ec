"""The handler of ``functions/ingest``: some pages of one connector's poll."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.definition import check_name
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.polls import Polls
    from lakesync.runtime.observe import Handler

WAIT_IN_MACHINE_S_MAX: Final = 60
"""How long a state machine waits for a source; after that, the connector's next poll continues."""
EXECUTION_S_MAX: Final = 200
"""How long one execution starts new work: it may take five minutes. Then another continues."""
SOURCE_KEPT: Final = "SourceKept"
"""The bytes that a source keeps until its connector has read them: the largest is alarmed."""
POLLS_BEHIND: Final = "PollsBehind"
"""Intervals since a connector's last poll that reached its end: the most is alarmed."""
POLLS_FAULTY: Final = "PollsFaulty"
"""Polls that ended with a fault that an operator must repair. Alarmed if it lasts."""
SOURCE_CHANGES: Final = "SourceSchemaChanges"
"""Changes of sources' schemas that polls noticed."""
_MARGIN_S: Final = 12
"""Left of a function's time when it reads no other page: a push gives up after 8 s."""


def ingest_handler(polls: Polls, seconds: Callable[[], float]) -> Handler:
    """Return the handler of ``functions/ingest``.

    Its answer is its next event: what is polled, where, under which lease, after how long; and the
    next step: ``again``, ``wait``, ``goOn`` in another execution, a ``job``, or ``end``.

    Args:
        polls: polls registered connectors.
        seconds: a clock that only goes forward.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        begins = seconds()
        ends = begins + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        gateway = event.get("gateway")
        lease, spent_s = event.get("lease", 0), event.get("spentS", 0)
        place = event.get("place", "")
        if not (isinstance(gateway, str) and isinstance(place, str)) or not (
            type(lease) is type(spent_s) is int
        ):
            raise ValidationFailed("name a gateway and one of its connectors", field="gateway")
        name = check_name(event.get("name"))
        try:
            step = polls.poll(gateway, name, lease, lambda: seconds() < ends)
            observe.count(SOURCE_KEPT, step.kept_bytes, "Bytes")
            observe.count(POLLS_BEHIND, step.behind)
            observe.count(POLLS_FAULTY, int(step.has_fault))
            observe.count(SOURCE_CHANGES, step.schema_changes)
        except LakeSyncError as error:
            observe.failure(error, gateway=gateway, connector=name)
            raise
        finally:
            observe.publish()
        spent_s += ceil(seconds() - begins) + step.wait_s
        return {
            "gateway": gateway,
            "name": name,
            "lease": step.lease,
            "status": step.status,
            "waitS": step.wait_s,
            "spentS": spent_s,
            "place": step.place or place,
            "next": _following(step.status, step.wait_s, spent_s),
        }

    return handler


def _following(status: str, wait_s: int, spent_s: int) -> str:
    if status == "large":
        return "job"
    has_time = spent_s <= EXECUTION_S_MAX
    if status in {"more", "elsewhere"}:
        return "again" if has_time else "goOn"
    is_brief = status == "wait" and 0 < wait_s <= WAIT_IN_MACHINE_S_MAX
    return "wait" if is_brief and has_time else "end"
