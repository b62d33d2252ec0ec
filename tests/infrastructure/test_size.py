"""The template stays small, is written out before it is deployed, and updates replace no data."""

from __future__ import annotations

import json
import re
import subprocess

from benchmarks.template import run
from tests.infrastructure.stack import functions, template, watched
from tests.infrastructure.transformed import transformed
from tests.support.repository import ROOT
from tools.local_stack.paths import SAM

STATEFUL = {
    "AWS::DynamoDB::Table": {"BufferTable", "ConnectionsTable", "AuditTable", "ActionsTable"},
    "AWS::S3::Bucket": {"LakeBucket"},
    "AWS::SQS::Queue": {
        "FlushQueue", "FlushDlq", "AnnounceQueue", "AnnounceDlq", "DeliverQueue", "DeliverDlq",
    },
    "AWS::SecretsManager::Secret": {"JwtSecret"},
    "AWS::ApiGatewayV2::Api": {"HttpApi", "SocketApi"},
    "AWS::Scheduler::ScheduleGroup": {"Schedules", "ConnectorSchedules"},
    "AWS::SNS::Topic": {"AlarmTopic"},
    "AWS::Lambda::Alias": {
        f"{name}FunctionAliaslive"
        for name in (
            "Actions", "Admin", "Attachments", "Authorise", "Connect", "Deliver", "Disconnect",
            "Flow", "Flush", "Frames", "Ingest", "LakeFlow", "Materialise", "Notify", "Open",
            "Pull", "PullSource", "Push", "Retain", "ScheduleFlush", "Webhook",
        )
    },
}  # fmt: skip
"""By type, the logical ids of what holds data or is named outside, as of the last release."""
# What holds data of a table, a queue or a bucket is replaced if one of these changes.
REPLACED_BY = ("KeySchema", "TableName", "BucketName", "QueueName", "FifoQueue", "Name")


def test_template_stays_within_its_promised_size() -> None:
    assert [entry["name"] for entry in run() if not entry["holds"]] == []


def test_every_parameter_has_a_default() -> None:
    assert [name for name, each in template()["Parameters"].items() if "Default" not in each] == []


def test_alarms_on_a_function_follow_it_in_the_template() -> None:
    """A reader finds a function with its trigger, rights and alarms in one place."""
    text, _, _ = (ROOT / "template.yaml").read_text().partition("\nOutputs:")
    order = re.findall(r"^  ([A-Z]\w+):", text, re.MULTILINE)
    places = {name: place for place, name in enumerate(order)}
    owners = sorted(places[name] for name in functions())
    watching = {
        name: one["Value"]["Ref"]
        for name, alarm in watched()
        for one in alarm.get("Dimensions", [])
        if one["Name"] == "FunctionName"
    }

    assert len(watching) > 5
    for alarm, function in watching.items():
        following = [place for place in owners if place > places[function]]
        assert places[function] < places[alarm] < min(following, default=len(order)), alarm


def test_update_replaces_no_resource_that_holds_data_or_has_an_external_name() -> None:
    every = transformed()["Resources"]
    for kind, names in STATEFUL.items():
        assert {name for name in names if every.get(name, {}).get("Type") == kind} == names, kind
    keys = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
    for kind in ("AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue"):
        for name in STATEFUL[kind]:
            asked = every[name]["Properties"]
            given = {key: asked[key] for key in REPLACED_BY if key in asked}
            assert given == ({"KeySchema": keys} if kind == "AWS::DynamoDB::Table" else {}), name


def test_template_that_sam_deploys_has_no_yaml_aliases_or_merges() -> None:
    """CloudFormation takes neither aliases nor merges; SAM's reader and writer resolve both."""
    ask = (
        "import json, sys; from samcli.yamlhelper import yaml_dump, yaml_parse;"
        "text = yaml_dump(yaml_parse(open(sys.argv[1]).read()));"
        "print(json.dumps([text.count('<<:'), text.count('*id'), yaml_parse(text)]))"
    )
    python = SAM.parent / "python"
    answer = subprocess.run(
        [python, "-c", ask, ROOT / "template.yaml"], capture_output=True, text=True, check=True
    )
    merges, aliases, read = json.loads(answer.stdout)

    assert (merges, aliases) == (0, 0)
    assert read == template()
