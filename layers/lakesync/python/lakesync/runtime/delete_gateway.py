"""Deletion of a gateway by ``functions/retain``: the task, and how its answer is waited for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.instants import utc_text
from lakesync.errors import BY_CODE, AdapterFailed, InternalError, LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.maintenance.deletion import Deleter, DeletionReport
    from lakesync.ports import WallClock

    Answer: TypeAlias = Mapping[str, object]
    HasTime: TypeAlias = Callable[[], bool]
    DeleteTask: TypeAlias = Callable[[Mapping[str, Any], HasTime], Answer]
    DeleteNow: TypeAlias = Callable[[str, str], Answer]

DELETE_NOW_S: Final = 20
"""How long one request may take to delete: API Gateway waits 30 s for an answer."""


def delete_task(deleter: Deleter, wall_clock: WallClock) -> DeleteTask:
    """Return the task: ``{"gateway": …, "by": …}``. Operational failures are part of its answer."""

    def task(event: Mapping[str, Any], has_time: HasTime) -> Answer:
        gateway, by = event.get("gateway"), event.get("by")
        if not isinstance(gateway, str) or not isinstance(by, str):
            raise ValidationFailed("name the gateway to delete, and who asks", field="gateway")
        try:
            report = deleter.delete(gateway, by=by, has_time=has_time)
        except LakeSyncError as error:
            observe.failure(error, task="delete", gateway=gateway)
            return {"code": error.code, "error": error.message}
        return _shown(report, wall_clock())

    return task


def _shown(report: DeletionReport, now_ms: int) -> Answer:
    return {
        "deletedAt": _at(report.deleted_ms),
        "finished": report.finished,
        "left": dict(report.left),
        "gone": report.is_gone,
        "proved": report.is_gone and now_ms >= report.final_ms,
        "provableFrom": _at(report.final_ms),
    }


def _at(ms: int) -> str:
    return utc_text(ms + 999)  # rounded up: a proof is not announced for too early a second


def delete_and_wait(invoke: Callable[[str], tuple[bool, bytes]]) -> DeleteNow:
    """Get the function behind ``DELETE /admin/gateways``: continue deleting, and report progress.

    Args:
        invoke: passes a request to ``functions/retain``; returns whether it answered, and what.
    """

    def delete_now(gateway: str, by: str) -> Mapping[str, object]:
        request = {"task": "delete", "gateway": gateway, "by": by, "seconds": DELETE_NOW_S}
        returned, payload = invoke(json.dumps(request))
        if not returned:
            raise AdapterFailed("the deletion failed; it is safe to ask again")
        answer: dict[str, object] = json.loads(payload)
        if "code" in answer:
            raise BY_CODE.get(str(answer["code"]), InternalError)(str(answer["error"]))
        return answer

    return delete_now
