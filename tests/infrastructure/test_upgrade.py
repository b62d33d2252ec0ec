"""A deployment can be watched and undone: aliases, versions of whatever changes, shifts."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import pytest

from tests.infrastructure.stack import functions, resources, template
from tests.infrastructure.transformed import made, processed, transformed
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = sorted(functions())
SHIFT = template()["Parameters"]["DeploymentShift"]
GRADUAL = [value for value in SHIFT["AllowedValues"] if value != "AllAtOnce"]
ANSWERING = {
    name
    for name, properties in functions().items()
    if any(event["Type"] == "HttpApi" for event in properties.get("Events", {}).values())
} | {
    "AuthoriseFunction",
    "ConnectFunction",
    "DisconnectFunction",
    "FramesFunction",
    "PullSourceFunction",
}
# What starts a function, or may.
CALLERS = (
    "AWS::ApiGatewayV2::Api",
    "AWS::IAM::Policy",
    "AWS::IAM::Role",
    "AWS::Lambda::EventSourceMapping",
    "AWS::Lambda::Permission",
    "AWS::Scheduler::Schedule",
    "AWS::StepFunctions::StateMachine",
)
# Of a function's properties, those that are not of its versions.
NOT_VERSIONED = ("ReservedConcurrentExecutions", "Events", "DeploymentPreference", "Policies")


def named(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for part in node:
            yield from named(part)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Ref":
                yield value
            elif key == "Fn::GetAtt":
                yield value[0] if isinstance(value, list) else value.partition(".")[0]
            elif key == "Fn::Sub":
                text = value[0] if isinstance(value, list) else value
                yield from re.findall(r"\$\{(\w+)[.\w]*\}", text)
                yield from named(value if isinstance(value, list) else [])
            else:
                yield from named(value)


def versions(deployed: dict[str, Any]) -> dict[str, str]:
    """Return the version that each function's alias stands for."""
    return {
        resource["Properties"]["FunctionName"]["Ref"]: resource["Properties"]["FunctionVersion"][
            "Fn::GetAtt"
        ][0]
        for resource in deployed["Resources"].values()
        if resource["Type"] == "AWS::Lambda::Alias"
    }


# --- who calls a function, calls its alias --------------------------------------------------------


def test_every_function_is_called_only_by_its_live_alias() -> None:
    aliases = {
        each["FunctionName"]["Ref"]: each["Name"] for each in made("AWS::Lambda::Alias").values()
    }
    called = {
        target: name
        for name, resource in transformed()["Resources"].items()
        if resource["Type"] in CALLERS
        for target in named(resource["Properties"])
    }

    assert aliases == dict.fromkeys(FUNCTIONS, "live")
    assert called.keys() & set(FUNCTIONS) == set()
    assert {f"{name}Aliaslive" for name in FUNCTIONS} <= called.keys()


def test_outputs_name_the_aliases_of_functions_that_operators_invoke() -> None:
    outputs = template()["Outputs"]

    for name in ("FlushFunction", "MaterialiseFunction", "RetainFunction"):
        assert outputs[name]["Value"] == {"Ref": f"{name}.Alias"}


# --- whatever changes makes a version -------------------------------------------------------------


def test_redeploying_unchanged_code_creates_no_new_version() -> None:
    assert versions(processed()) == versions(processed(layer="key"))


def test_changed_library_creates_a_new_version_of_every_function() -> None:
    before, after = versions(processed()), versions(processed(layer="other"))

    assert [name for name in FUNCTIONS if before[name] == after[name]] == []


def _settings(name: str) -> set[str]:
    """Return the parameters that a function's version depends on."""
    properties = {
        key: value for key, value in functions()[name].items() if key not in NOT_VERSIONED
    }
    return {name for name in named(properties) if name in template()["Parameters"]}


@pytest.mark.parametrize("parameter", sorted(set().union(*map(_settings, FUNCTIONS))))
def test_changed_parameter_creates_new_versions_of_exactly_the_functions_that_read_it(
    parameter: str,
) -> None:
    value = template()["Parameters"][parameter].get("AllowedValues", ["other"])[-1]
    before, after = versions(processed()), versions(processed(**{parameter: str(value)}))
    changed = {name for name in FUNCTIONS if before[name] != after[name]}

    assert changed == {name for name in FUNCTIONS if parameter in _settings(name)}


def test_function_versions_and_their_layers_are_retained_after_the_next_deployment() -> None:
    for name in made("AWS::Lambda::Version"):
        assert transformed()["Resources"][name]["DeletionPolicy"] == "Retain", name
    for name, layer in resources("AWS::Serverless::LayerVersion").items():
        assert layer["DeletionPolicy"] == {"Fn::If": ["IsProtected", "Retain", "Delete"]}, name
        assert layer["Properties"]["PublishLambdaVersion"] is True


# --- the gradual shift ----------------------------------------------------------------------------


def test_default_deployment_uses_no_codedeploy() -> None:
    assert SHIFT["Default"] == "AllAtOnce"
    kinds = {resource["Type"] for resource in processed()["Resources"].values()}
    assert not [kind for kind in kinds if "CodeDeploy" in kind]


@pytest.mark.parametrize("shift", GRADUAL)
def test_gradual_deployment_rolls_back_when_an_alarm_fires(shift: str) -> None:
    deployed = processed(DeploymentShift=shift)["Resources"]
    groups = {
        name.removesuffix("DeploymentGroup"): resource["Properties"]
        for name, resource in deployed.items()
        if resource["Type"] == "AWS::CodeDeploy::DeploymentGroup"
    }

    assert groups.keys() == ANSWERING
    for name, group in some(groups.items()):
        config = group["DeploymentConfigName"]["Fn::Sub"][1]["ConfigName"]
        assert config == shift
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        policy = deployed[f"{name}Aliaslive"]["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
        assert policy["DeploymentGroupName"] == {"Ref": f"{name}DeploymentGroup"}
        alarms = {each["Name"]["Ref"] for each in group["AlarmConfiguration"]["Alarms"]}
        assert alarms == {
            "Bugs", "DependenciesFail", "PushesFail", "PullsFail", "RequestsFail",
        }  # fmt: skip


@pytest.mark.parametrize("shift", GRADUAL)
def test_gradual_deployment_lasts_longer_than_its_alarms_evaluate(shift: str) -> None:
    percent, minutes = map(int, re.findall(r"\d+", shift))
    lasts_s = 60 * minutes * (100 // percent if shift.startswith("Linear") else 1)
    groups = [functions()[name]["DeploymentPreference"]["Alarms"] for name in sorted(ANSWERING)]

    for alarm in some({each["Ref"] for alarms in groups for each in alarms}):
        watched = resources("AWS::CloudWatch::Alarm")[alarm]["Properties"]
        assert lasts_s > watched["Period"] * watched["EvaluationPeriods"], alarm


@pytest.mark.parametrize("shift", ["AllAtOnce", GRADUAL[0]])
def test_resource_dependencies_have_no_cycle(shift: str) -> None:
    """An alarm on the API, for one, would: the API waits for the aliases, and these for alarms."""
    every = processed(DeploymentShift=shift)["Resources"]
    needs = {
        name: ({*named(resource), *_listed(resource.get("DependsOn", []))} & every.keys()) - {name}
        for name, resource in every.items()
    }

    assert set(TopologicalSorter(needs).static_order()) == every.keys()


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
