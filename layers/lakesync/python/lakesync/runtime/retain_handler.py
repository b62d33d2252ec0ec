"""The handler of ``functions/retain``: a task of one gateway, or of a slice of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import GatewayDeleted, LakeSyncError, ValidationFailed
from lakesync.runtime import observe
from lakesync.runtime.retain_slices import SLICE_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.delete_gateway import Answer, DeleteTask
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.retain import Retention
    from lakesync.runtime.retain_slices import Slices

_MARGIN_S: Final = 30
"""Left of a function's time when it begins nothing more: one step takes some seconds."""


def retain_handler(
    retention: Retention, slices: Slices, delete: DeleteTask, seconds: Callable[[], float]
) -> Handler:
    """Return the handler of ``functions/retain``.

    It raises what went wrong, so that the state machine tries again.

    Args:
        retention: does it for one gateway.
        slices: does it for many.
        delete: deletes a gateway.
        seconds: a clock that only goes forward.
    """
    tasks = {
        "plan": retention.plan,
        "build": retention.build,
        "trim": retention.trim,
        "forget": retention.forget,
        "clean": retention.clean,
    }

    def handler(event: dict[str, Any], context: Any) -> Answer:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        task = event.get("task")
        if "seconds" in event:
            ends = min(ends, seconds() + float(event["seconds"]))
        try:
            if task in SLICE_TASKS:
                return slices.do(event, lambda: seconds() < ends)
            if task == "delete":
                return delete(event, lambda: seconds() < ends)
            gateway, place = event.get("gateway"), event.get("place", "")
            if task not in tasks or not isinstance(gateway, str) or not isinstance(place, str):
                raise ValidationFailed(
                    f"name a task, one of {', '.join((*SLICE_TASKS, *tasks))}, and its gateway",
                    field="task",
                )
            return {"place": "", **tasks[task](gateway, place, lambda: seconds() < ends)}
        except GatewayDeleted:
            return {"place": "", "flushed": "", "finished": True}
        except LakeSyncError as error:
            # The state machine's own record has no room for the errors of single gateways.
            observe.failure(error, task=str(task), gateway=str(event.get("gateway")))
            raise
        finally:
            observe.publish()

    return handler
