"""Databases in a VPC: who reaches them, and what a VPC must have for those who do."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.flows import DATABASES
from tests.infrastructure.transformed import processed
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDPOINTS: Final = {"cloudwatch": "monitoring"}
"""Services whose endpoints have another name than their permissions."""
NOT_FROM_THERE: Final = frozenset({"ec2"})
"""Of Glue's own making of network interfaces, from outside the network."""
GATEWAYS: Final = frozenset({"dynamodb", "s3"})
"""The two services that have gateway endpoints, which cost nothing: "Gateway endpoints" of the
guide to AWS PrivateLink.
"""
USD_PER_HOUR: Final = 0.01
"""Of an interface endpoint in one zone of us-east-1: AWS PrivateLink's page of prices."""
MONTH_H: Final = 730


@functools.cache
def deployed() -> dict[str, Any]:
    """Return the resources of a stack that reaches databases in a VPC."""
    found: dict[str, Any] = processed(
        DestinationSubnetIds="subnet-1",
        DestinationSecurityGroupIds="sg-1",
        DestinationZone="us-east-1a",
    )["Resources"]
    return found


def in_subnets() -> set[str]:
    return {
        name
        for name, each in deployed().items()
        if each["Type"] == "AWS::Lambda::Function" and "VpcConfig" in each["Properties"]
    }


def actions(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for part in node:
            yield from actions(part)
    elif isinstance(node, dict):
        for name, part in node.items():
            if name == "Action":
                yield from [part] if isinstance(part, str) else part
            else:
                yield from actions(part)


def services(owner: str) -> set[str]:
    """Return the services that a function or a job may call, by all policies of its role."""
    role = f"{owner}Role"
    own = deployed()[role]["Properties"]
    policies = [own.get("Policies", [])]
    for name, each in deployed().items():
        if each["Type"] in {"AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"}:
            roles = json.dumps(each["Properties"].get("Roles", []))
            attached = json.dumps(own.get("ManagedPolicyArns", []))
            if json.dumps({"Ref": role}) in roles or json.dumps({"Ref": name}) in attached:
                policies.append(each["Properties"])
    called = {action.partition(":")[0] for action in some(actions(policies))}
    return {ENDPOINTS.get(name, name) for name in called - NOT_FROM_THERE}


def listed() -> dict[str, tuple[str, str]]:
    """Return the endpoints of the page: of each its kind, and its price."""
    page = (ROOT / "docs" / "databases.md").read_text()
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (gateway|interface) \| .* \| (\S+) \|$", page, re.MULTILINE
    )
    return {name: (kind, price) for name, kind, price in some(rows)}


def test_documented_vpc_endpoints_are_exactly_the_services_called_from_the_vpc() -> None:
    needed = set().union(*(services(name) for name in some({*in_subnets(), "FlowJob"})))

    assert listed().keys() == needed


def test_documented_vpc_endpoints_have_their_type_and_price() -> None:
    price = f"${USD_PER_HOUR * MONTH_H:.2f}"
    for name, (kind, priced) in some(listed().items()):
        is_gateway = name in GATEWAYS
        assert (kind, priced) == (("gateway", "free") if is_gateway else ("interface", price)), name


def test_functions_that_poll_or_test_databases_are_in_their_subnets() -> None:
    """SQL connectors and flows are polled at the place `DATABASES` (tests/connectors)."""
    machine = (ROOT / "stepfunctions" / "poll_connector.asl.json").read_text()
    polls = re.search(rf"place = '{DATABASES}' \? '\$\{{(\w+)\}}'", machine)
    assert polls is not None
    asked = deployed()["AdminFunction"]["Properties"]["Environment"]["Variables"]["FLOW_FUNCTION"]

    assert polls[1] == "FlowFunction"
    assert asked == {"Ref": "FlowFunctionAliaslive"}
    assert {"FlowFunction", "DeliverFunction", "PullSourceFunction", "LakeFlowFunction"} == (
        in_subnets()
    )


def test_private_database_is_reachable_by_parameters_alone() -> None:
    """Whoever reaches databases is in the subnets, and has the networks of `DatabaseHosts`."""
    hosts = processed(DatabaseHosts="10.20.0.0/16")["Resources"]
    for name in some(in_subnets()):
        condition, network, nothing = deployed()[name]["Properties"]["VpcConfig"]["Fn::If"]
        variables = hosts[name]["Properties"]["Environment"]["Variables"]

        assert network == {"SubnetIds": "subnet-1", "SecurityGroupIds": "sg-1"}
        assert (condition, nothing) == ("HasDestinationSubnets", {"Ref": "AWS::NoValue"})
        assert variables["DATABASE_HOSTS"] == "10.20.0.0/16"
