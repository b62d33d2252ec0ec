"""When connectors are polled: an EventBridge schedule for each, which starts the state machine.

The first poll is begun at once. The others are at a connector's place in its interval, so that many
which were made or resumed together are not polled together.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakesync.core.spread import next_turn
from lakesync.errors import AdapterFailed

if TYPE_CHECKING:
    from collections.abc import Callable


class EventBridgePolls:
    """`lakesync.ports.PollSchedules` by EventBridge Scheduler and Step Functions.

    Args:
        client: gives boto3's client of a service, made when it is first needed.
        group: the stack's schedule group for polls.
        machine: the ARN of the state machine.
        role: the ARN of the role by which schedules start it.
        seconds: the time since 1970.
    """

    def __init__(
        self,
        client: Callable[[str], Any],
        group: str,
        machine: str,
        role: str,
        seconds: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._group = group
        self._machine = machine
        self._role = role
        self._seconds = seconds

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Make the connector's schedule and begin its first poll, or change the schedule."""
        turn = next_turn(every_minutes * 60, f"{gateway}/{name}", math.ceil(self._seconds()))
        schedule = {
            "Name": schedule_name(gateway, name),
            "GroupName": self._group,
            "ScheduleExpression": f"rate({every_minutes} minute{'s' if every_minutes > 1 else ''})",
            # A rate counts from here. It may not be in the past.
            "StartDate": datetime.fromtimestamp(turn, UTC),
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "State": "DISABLED" if paused else "ENABLED",
            "Target": {
                "Arn": self._machine,
                "RoleArn": self._role,
                "Input": _input(gateway, name),
                # The next one is soon enough.
                "RetryPolicy": {"MaximumRetryAttempts": 0},
            },
        }
        if self._ask("scheduler", "create_schedule", schedule, but="ConflictException") is None:
            self._ask("scheduler", "update_schedule", schedule)
        elif not paused:
            self.poll_now(gateway, name)

    def remove(self, gateway: str, name: str) -> None:
        """Remove the connector's schedule."""
        request = {"Name": schedule_name(gateway, name), "GroupName": self._group}
        self._ask("scheduler", "delete_schedule", request, but="ResourceNotFoundException")

    def poll_now(self, gateway: str, name: str) -> None:
        """Start the state machine."""
        request = {"stateMachineArn": self._machine, "input": _input(gateway, name)}
        self._ask("stepfunctions", "start_execution", request)

    def _ask(self, service: str, operation: str, request: dict[str, Any], but: str = "") -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - when needed

        try:
            return getattr(self._client(service), operation)(**request)
        except ClientError as exc:
            code = exc.response["Error"]["Code"]
            if code == but:
                return None
            raise AdapterFailed(f"{service} refused {operation}: {code}") from exc
        except BotoCoreError as exc:
            raise AdapterFailed(f"{service} did not answer {operation}: {exc}") from exc


def schedule_name(gateway: str, name: str) -> str:
    """Return the name of a connector's schedule: a digest, as both names together are too long."""
    return f"poll-{hashlib.sha256(f'{gateway}/{name}'.encode()).hexdigest()[:40]}"


def _input(gateway: str, name: str) -> str:
    return json.dumps({"gateway": gateway, "name": name})
