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


def check_stack(deployed: Deployed) -> list[Diagnosis]:
    """Check how the last deployment ended, and which outputs exist."""
    return stack_state(deployed.stack["StackStatus"], deployed.aws.outputs)


def stack_state(status: str, outputs: Collection[str]) -> list[Diagnosis]:
    """Decide by the stack's status and the names of its outputs."""
    return [_status(status), _outputs(sorted(set(OUTPUTS) - set(outputs)))]


def _status(status: str) -> Diagnosis:
    if status.endswith("_IN_PROGRESS"):
        return wrong(f"a deployment is under way: {status}", "wait for its end, and look again")
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
