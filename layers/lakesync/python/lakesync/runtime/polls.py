"""Polls of connectors in AWS: their handler, schedules, secrets, and reports of changed schemas.

Schedules: one of EventBridge for each connector, which starts the state machine. The first poll is
begun at once. The others are at a connector's place in its interval, so that many which were made
or resumed together are not polled together.

Reports: to the audit log, and as events on a bus of EventBridge. A report that fails is logged, and
the poll goes on: the connector's state has the change.

Secrets: in AWS Secrets Manager, all below one prefix, which policies name.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.registry import check_name
from lakesync.core.clock import next_turn
from lakesync.errors import AdapterFailed, LakeSyncError, Unavailable, ValidationFailed
from lakesync.gateway.admin_changes import Who
from lakesync.ports import AuditOutcome
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lakesync.connectors.polls import Polls, SchemaChange
    from lakesync.gateway.admin_changes import Audit
    from lakesync.runtime.observe import Handler, Seconds

# --- the handler ----------------------------------------------------------------------------------


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


def ingest_handler(polls: Polls, seconds: Seconds) -> Handler:
    """Return the handler of ``functions/ingest``.

    Its answer is its next event: what is polled, where, under which lease, after how long; and the
    next step: ``again``, ``wait``, ``goOn`` in another execution, a ``job``, or ``end``.
    """

    @observe.publishing
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


# --- schedules ------------------------------------------------------------------------------------


@dataclass
class EventBridgePolls:
    """`lakesync.ports.PollSchedules` by EventBridge Scheduler and Step Functions.

    ``machine`` and ``role`` are ARNs; schedules start the one by the other.
    """

    client: Callable[[str], Any]
    group: str
    machine: str
    role: str
    seconds: Callable[[], float] = time.time

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Make the connector's schedule and begin its first poll, or change the schedule."""
        turn = next_turn(every_minutes * 60, f"{gateway}/{name}", math.ceil(self.seconds()))
        schedule = {
            "Name": schedule_name(gateway, name),
            "GroupName": self.group,
            "ScheduleExpression": f"rate({every_minutes} minute{'s' if every_minutes > 1 else ''})",
            # A rate counts from here. It may not be in the past.
            "StartDate": datetime.fromtimestamp(turn, UTC),
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "State": "DISABLED" if paused else "ENABLED",
            "Target": {
                "Arn": self.machine,
                "RoleArn": self.role,
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
        request = {"Name": schedule_name(gateway, name), "GroupName": self.group}
        self._ask("scheduler", "delete_schedule", request, but="ResourceNotFoundException")

    def poll_now(self, gateway: str, name: str) -> None:
        request = {"stateMachineArn": self.machine, "input": _input(gateway, name)}
        self._ask("stepfunctions", "start_execution", request)

    def _ask(self, service: str, operation: str, request: dict[str, Any], but: str = "") -> Any:
        return _asked(service, self.client(service), operation, request, but)


def _asked(
    service: str,
    client: Any,
    operation: str,
    request: dict[str, Any],
    but: str,
    for_a_moment: Collection[str] = (),
) -> Any:
    """Return what a service of AWS answers; None if it refuses with the code ``but``.

    Raises:
        Unavailable: it refuses with a code that it gives for a moment.
        AdapterFailed: it refuses with another, or does not answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - when needed

    try:
        return getattr(client, operation)(**request)
    except ClientError as exc:
        code = exc.response["Error"]["Code"]
        if code == but:
            return None
        if code in for_a_moment:
            raise Unavailable(f"{service} cannot {operation} yet: {code}") from exc
        raise AdapterFailed(f"{service} refused {operation}: {code}") from exc
    except BotoCoreError as exc:
        raise AdapterFailed(f"{service} did not answer {operation}: {exc}") from exc


def schedule_name(gateway: str, name: str) -> str:
    """Return the name of a connector's schedule: a digest, as both names together are too long."""
    return f"poll-{hashlib.sha256(f'{gateway}/{name}'.encode()).hexdigest()[:40]}"


def _input(gateway: str, name: str) -> str:
    return json.dumps({"gateway": gateway, "name": name})


# --- reports --------------------------------------------------------------------------------------


OPERATION: Final = "sourceSchemaChanged"
"""The operation of the audit record."""
DETAIL_TYPE: Final = "Source schema changed"
"""Of the events, whose source is `SOURCE`."""
SOURCE: Final = "lakesync"
NO_BUS: Final = "none"
"""In place of a bus: there are no events."""
_ENTRIES_MAX: Final = 10
"""Events of one request; EventBridge's maximum."""


@dataclass
class SchemaReports:
    """Reports what changed."""

    audit: Audit
    bus: str
    events: Callable[[], Any]

    def __call__(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        """Report what changed at the source of a connector."""
        for report in (self._record, self._put):
            try:
                report(gateway, name, changes)
            except LakeSyncError as error:
                observe.failure(error, gateway=gateway, connector=name)

    def _record(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        who = Who(f"connector:{name}", "connector")
        record = self.audit.begin(gateway, who, OPERATION, name, {})
        self.audit.end(record, AuditOutcome.DONE, {"changes": [*map(_shown, changes)]})

    def _put(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        if self.bus == NO_BUS:
            return
        entries = [
            {
                "EventBusName": self.bus,
                "Source": SOURCE,
                "DetailType": DETAIL_TYPE,
                "Detail": json.dumps({"gateway": gateway, "connector": name} | _shown(change)),
            }
            for change in changes
        ]
        for start in range(0, len(entries), _ENTRIES_MAX):
            if self._refused(entries[start : start + _ENTRIES_MAX]):
                raise AdapterFailed("EventBridge did not take events of a changed schema")

    def _refused(self, entries: Sequence[dict[str, str]]) -> int:
        try:
            return int(self.events().put_events(Entries=entries)["FailedEntryCount"])
        except Exception as exc:
            raise AdapterFailed(f"EventBridge was not reached: {type(exc).__name__}") from exc


def _shown(change: SchemaChange) -> dict[str, Any]:
    return {name: value for name, value in asdict(change).items() if name != "at_ms"}


# --- secrets --------------------------------------------------------------------------------------


REMEMBERED_S_MAX: Final = 300
"""How long a secret that was read is cached: each read costs, and a changed secret takes effect
after this time, or when its source refuses the cached one.
"""
ABSENT_S_MAX: Final = 10
"""How long it is remembered that there is no such secret."""

_ABSENT: Final = "ResourceNotFoundException"
_FOR_A_MOMENT: Final = frozenset(
    {"InvalidRequestException", "ThrottlingException", "ResourceExistsException"}
)
"""One of that name is just being removed, or made."""


@dataclass(eq=False, repr=False)
class Secrets:
    """`lakesync.ports.SecretStore` in Secrets Manager; it is shown nowhere, as it holds secrets."""

    client: Callable[[], Any]
    prefix: str
    seconds: Seconds = time.monotonic
    _read: dict[str, tuple[float, dict[str, str]]] = field(default_factory=dict, init=False)

    def get(self, name: str) -> Mapping[str, str]:
        known = self._read.get(name)
        # One that is missing may be about to be stored: a connector is stored before its secrets.
        for_s = REMEMBERED_S_MAX if known and known[1] else ABSENT_S_MAX
        if known and self.seconds() - known[0] < for_s:
            return known[1]
        answer = self._ask("get_secret_value", {"SecretId": self.prefix + name}) or {}
        fields: dict[str, str] = json.loads(answer.get("SecretString", "{}"))
        self._read[name] = (self.seconds(), fields)
        return fields

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret, replacing the one under the name; one without fields is not created."""
        self._read.pop(name, None)
        text = json.dumps(dict(fields))
        request = {"SecretId": self.prefix + name, "SecretString": text}
        if self._ask("put_secret_value", request) is None and fields:
            request = {"Name": self.prefix + name, "SecretString": text}
            self._ask("create_secret", request, but="")

    def remove(self, name: str) -> None:
        self._read.pop(name, None)
        request = {"SecretId": self.prefix + name, "ForceDeleteWithoutRecovery": True}
        self._ask("delete_secret", request)

    def get_anew(self, name: str) -> Mapping[str, str]:
        self._read.pop(name, None)
        return self.get(name)

    def _ask(self, operation: str, request: dict[str, Any], but: str = _ABSENT) -> Any:
        return _asked("Secrets Manager", self.client(), operation, request, but, _FOR_A_MOMENT)
