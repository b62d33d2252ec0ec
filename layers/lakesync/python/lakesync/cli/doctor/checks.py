"""All checks by name, and their execution."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.deployment import (
    check_alarms,
    check_clock,
    check_functions,
    check_gateway,
    check_quotas,
    check_service_quotas,
    check_stack,
)
from lakesync.cli.doctor.diagnosis import Diagnosis, Verdict, unchecked
from lakesync.cli.doctor.permissions import check_permissions
from lakesync.cli.doctor.progress import (
    check_buffer_lag,
    check_connectors,
    check_destinations,
    check_lake_lag,
    check_queues,
    check_schedules,
)
from lakesync.cli.doctor.storage import check_bucket, check_restore
from lakesync.cli.faults import NO_ACCESS, fault_of, is_bug_to_show

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lakesync.cli.doctor.diagnosis import Deployed

CHECKS: Final[dict[str, Callable[[Deployed], list[Diagnosis]]]] = {
    "stack": check_stack,
    "gateway": check_gateway,
    "clock": check_clock,
    "functions": check_functions,
    "permissions": check_permissions,
    "quotas": check_quotas,
    "service-quotas": check_service_quotas,
    "alarms": check_alarms,
    "schedules": check_schedules,
    "buffer": check_buffer_lag,
    "lake": check_lake_lag,
    "destinations": check_destinations,
    "connectors": check_connectors,
    "queues": check_queues,
    "restore": check_restore,
    "bucket": check_bucket,
}
"""The checks, in the order of the report."""
_MAY_ASK: Final = "let these credentials ask (docs/operations.md § Is all well), or --skip it"
_ANSWER: Final = "mend that, or --skip this check where it can never be asked"


def examine(
    deployed: Deployed, skipped: Collection[str] = ()
) -> Iterator[tuple[str, list[Diagnosis]]]:
    """Run every check that is not skipped; if one fails, report that and continue.

    Without the stack nothing else can be checked.
    """
    for name, check in CHECKS.items():
        if name in skipped:
            continue
        diagnoses = examined(partial(check, deployed))
        yield name, diagnoses
        if check is check_stack and diagnoses[0].verdict is Verdict.UNCHECKED:
            break


def examined(check: Callable[[], list[Diagnosis]]) -> list[Diagnosis]:
    """Run a check; if AWS does not answer it, that is its diagnosis."""
    try:
        return check()
    except Exception as exc:
        if is_bug_to_show(exc):
            raise
        fault = fault_of(exc)
        do = _MAY_ASK if fault.exit_code == NO_ACCESS else _ANSWER
        return [unchecked(fault.sentence, do)]
