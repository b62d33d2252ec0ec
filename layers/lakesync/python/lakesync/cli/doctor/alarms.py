"""Checks alarms: all exist, none is active, and somebody is notified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.doctor.diagnosis import excused, well, wrong
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

_NAMES_MAX: Final = 100
"""CloudWatch's maximum of alarms in one call."""
_AWS_KEY: Final = "alias/aws/sns"
_RINGS: Final = "docs/operations.md § Alarms says what to do"
_PENDING: Final = "PendingConfirmation"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that alarms notify."""

    arn: str
    confirmed: int
    pending: int
    key: str = ""
    """The key that encrypts its messages; empty if they are not encrypted."""


def check_alarms(deployed: Deployed) -> list[Diagnosis]:
    """Check the stack's alarms and the topics they notify."""
    wanted = [item.physical for item in deployed.of_kind("AWS::CloudWatch::Alarm")]
    pages = deployed.client("cloudwatch").get_paginator("describe_alarms")
    alarms = [
        alarm
        for first in range(0, len(wanted), _NAMES_MAX)
        for page in pages.paginate(AlarmNames=wanted[first : first + _NAMES_MAX])
        for alarm in page["MetricAlarms"]
    ]
    targets = sorted({arn for alarm in alarms for arn in alarm.get("AlarmActions", [])})
    topics = [_topic(deployed.client("sns"), arn) for arn in targets if ":sns:" in arn]
    heard = listeners(topics)
    if deployed.is_local:
        heard = excused(heard, "on the stage local nobody needs to hear of alarms")
    return [*alarms_state(wanted, alarms), *heard]


def _topic(client: Any, arn: str) -> Topic:
    pages = client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=arn)
    arns = [item["SubscriptionArn"] for page in pages for item in page["Subscriptions"]]
    pending = sum(one == _PENDING for one in arns)
    attributes = client.get_topic_attributes(TopicArn=arn)["Attributes"]
    return Topic(arn, len(arns) - pending, pending, attributes.get("KmsMasterKeyId", ""))


def alarms_state(wanted: Iterable[str], alarms: Iterable[Mapping[str, Any]]) -> list[Diagnosis]:
    """Decide by the stack's alarms and their states in CloudWatch."""
    known = {alarm["AlarmName"]: alarm for alarm in alarms}
    faults = [
        wrong(f"the alarm {name} is gone", "deploy again, or nobody hears of what it watched")
        for name in wanted
        if name not in known
    ]
    for name, alarm in sorted(known.items()):
        if alarm["StateValue"] == "ALARM":
            description = alarm.get("AlarmDescription") or name
            faults.append(
                wrong(f"{name} rings: {description}", "docs/operations.md § Alarms says what to do")
            )
        if not alarm.get("ActionsEnabled", True) or not alarm.get("AlarmActions"):
            faults.append(
                wrong(
                    f"the alarm {name} notifies nobody",
                    f"aws cloudwatch enable-alarm-actions --alarm-names {name}, or deploy again",
                )
            )
    return faults or [well(f"{plural(len(known), 'alarm')} there, none rings")]


def listeners(topics: Iterable[Topic]) -> list[Diagnosis]:
    """Decide by the topics' subscriptions."""
    return [_listener(topic) for topic in topics] or [
        wrong("no alarm notifies a topic", "deploy again")
    ]


def _listener(topic: Topic) -> Diagnosis:
    if topic.key == _AWS_KEY:
        return wrong(
            f"CloudWatch may not publish to {topic.arn}: it is encrypted with {_AWS_KEY}",
            "use a key of your own that cloudwatch.amazonaws.com may use; deploy again",
        )
    if topic.confirmed:
        return well(f"{plural(topic.confirmed, 'subscriber')} of {topic.arn}")
    if topic.pending:
        return wrong(
            f"nobody has confirmed a subscription to {topic.arn}",
            "follow the link in the mail from AWS Notifications",
        )
    return wrong(
        f"nobody has subscribed to {topic.arn}: alarms ring unheard",
        "set AlarmEmail and deploy, or subscribe to the topic",
    )
