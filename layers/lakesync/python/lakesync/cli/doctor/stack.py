"""Checks the stack: completely deployed, with the outputs that this release needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import well, wrong

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

OUTPUTS: Final = (
    "AlarmTopicArn",
    "AnnounceDlqUrl",
    "AnnounceQueueUrl",
    "BufferTable",
    "DatabasePrefix",
    "FlushDlqUrl",
    "FlushQueueUrl",
    "GlueJobName",
    "HttpUrl",
    "LakeBucket",
    "RetainFunction",
)
"""The outputs that the command line reads."""

_AFTER_ROLLBACK: Final = {
    "ROLLBACK_COMPLETE": "it was the first one, and such a stack takes no other: read its events "
    "for the first failure, mend it, `lakesync stack delete NAME --yes NAME`, and deploy again",
    "ROLLBACK_FAILED": "it was the first one, and such a stack takes no other: read its events for "
    "the first failure, mend it, `lakesync stack delete NAME --yes NAME`, and deploy again",
    "UPDATE_ROLLBACK_FAILED": "read the stack's events for what could not be put back, mend it, "
    "and run `aws cloudformation continue-update-rollback --stack-name NAME`; then deploy again",
}
"""What to do about a stack that was rolled back in the middle."""


def check_stack(deployed: Deployed) -> list[Diagnosis]:
    """Check how the last deployment ended, and which outputs exist."""
    return stack_state(deployed.stack["StackStatus"], deployed.aws.outputs)


def stack_state(status: str, outputs: Collection[str]) -> list[Diagnosis]:
    """Decide by the stack's status and the names of its outputs."""
    return [_status(status), _outputs(sorted(set(OUTPUTS) - set(outputs)))]


def _status(status: str) -> Diagnosis:
    if status.endswith("_IN_PROGRESS"):
        return wrong(f"a deployment is under way: {status}", "wait for its end, and look again")
    if status in _AFTER_ROLLBACK:
        return wrong(f"the last deployment failed: {status}", _AFTER_ROLLBACK[status])
    if "ROLLBACK" in status or not status.endswith("_COMPLETE"):
        return wrong(
            f"the last deployment failed: {status}",
            "read the stack's events for the first failure, mend it, and deploy again",
        )
    return well(f"deployed: {status}")


def _outputs(missing: list[str]) -> Diagnosis:
    if missing:
        return wrong(
            f"the stack has no output {', '.join(missing)}",
            "deploy the release that this command line is of",
        )
    return well("every output is there")
