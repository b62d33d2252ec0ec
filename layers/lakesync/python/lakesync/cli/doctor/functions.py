"""Checks the functions: active, of one release, with the layers of the same deployment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.doctor.diagnosis import well, wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

RUNTIME_ENDS: Final = {
    "python3.11": date(2027, 6, 30),
    "python3.12": date(2028, 10, 31),
    "python3.13": date(2029, 6, 30),
    "python3.14": date(2029, 6, 30),
}
"""When AWS stops security updates of a runtime (its table of deprecation dates)."""
_WARNED_DAYS: Final = 90
_DEPLOY: Final = "deploy again (sam build && sam deploy)"


@dataclass(frozen=True, slots=True)
class Function:
    """Lambda's description of one function."""

    name: str
    config: Mapping[str, Any]
    reserved: int | None = None
    """Its reserved concurrency."""
    aliases: tuple[Mapping[str, Any], ...] = ()
    """Each alias, with the configuration of its version as ``config``."""


def check_functions(deployed: Deployed) -> list[Diagnosis]:
    """Check every function of the stack."""
    client = deployed.client("lambda")
    functions = [
        _described(client, resource.logical, resource.physical)
        for resource in deployed.of_kind("AWS::Lambda::Function")
    ]
    layers = [resource.physical for resource in deployed.of_kind("AWS::Lambda::LayerVersion")]
    today = datetime.fromtimestamp(deployed.now_s, UTC).date()
    return functions_state(functions, layers, today)


def _described(client: Any, logical: str, physical: str) -> Function:
    config = client.get_function_configuration(FunctionName=physical)
    concurrency = client.get_function_concurrency(FunctionName=physical)
    aliases = client.list_aliases(FunctionName=physical).get("Aliases", [])
    return Function(
        logical,
        config,
        concurrency.get("ReservedConcurrentExecutions"),
        tuple(
            alias
            | {
                "config": client.get_function_configuration(
                    FunctionName=physical, Qualifier=alias["Name"]
                )
            }
            for alias in aliases
        ),
    )


def functions_state(
    functions: Iterable[Function], layers: Iterable[str], today: date
) -> list[Diagnosis]:
    """Decide by Lambda's descriptions, and by the layers in the stack."""
    every = list(functions)
    faults = [
        fault
        for function in every
        for fault in (*_work(function), *_aliases(function), *_runtime(function, today))
    ]
    faults += _layers(every, frozenset(layers))
    return faults or [well(f"{len(every)} functions are active, of one release")]


def _work(function: Function) -> list[Diagnosis]:
    config, name = function.config, function.name
    if function.reserved == 0:
        return [
            wrong(
                f"{name} is stopped: its reserved concurrency is 0",
                f"aws lambda delete-function-concurrency --function-name {config['FunctionName']}",
            )
        ]
    state, update = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if state in {"Active", "Inactive"} and update == "Successful":
        return []
    reason = config.get("StateReason") or config.get("LastUpdateStatusReason") or "no reason given"
    return [wrong(f"{name} is {state}, its update {update}: {reason}", _DEPLOY)]


def _aliases(function: Function) -> list[Diagnosis]:
    """Check that each alias points to one version only, that of the last deployment."""
    faults = []
    for alias in function.aliases:
        name = f"{function.name}:{alias['Name']}"
        if (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights"):
            faults.append(
                wrong(
                    f"{name} shares its traffic between two versions",
                    "a gradual deployment is under way: wait for its end, or roll it back",
                )
            )
        elif other := _differences(alias["config"], function.config):
            faults.append(
                wrong(
                    f"{name} runs version {alias['FunctionVersion']}, not what was deployed last: "
                    f"other {', '.join(other)}",
                    f"if it was put back, read why (docs/upgrade.md), mend that, and {_DEPLOY}",
                )
            )
    return faults


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between functions of one release. Layers contain nearly all the code."""

    def arns(config: Mapping[str, Any]) -> list[str]:
        return [layer["Arn"] for layer in config.get("Layers") or []]

    differs = {
        "layers": arns(one) != arns(other),
        "code": one.get("CodeSha256") != other.get("CodeSha256"),
        "settings": one.get("Environment") != other.get("Environment"),
        "runtime": one.get("Runtime") != other.get("Runtime"),
    }
    return [name for name, is_other in differs.items() if is_other]


def _runtime(function: Function, today: date) -> list[Diagnosis]:
    runtime = function.config.get("Runtime", "")
    ends = RUNTIME_ENDS.get(runtime)
    if ends is None:
        return [wrong(f"{function.name} runs on {runtime}", f"set PythonRuntime; {_DEPLOY}")]
    if (ends - today).days > _WARNED_DAYS:
        return []
    return [
        wrong(
            f"{function.name} runs on {runtime}, which AWS mends until {ends}",
            f"set PythonRuntime to a later one; {_DEPLOY}",
        )
    ]


def _layers(functions: Iterable[Function], deployed: frozenset[str]) -> list[Diagnosis]:
    """A function with another version of a layer than the stack's is of another release."""
    strangers: dict[str, list[str]] = defaultdict(list)
    for function in functions:
        for layer in function.config.get("Layers") or []:
            if layer["Arn"] not in deployed:
                strangers[layer["Arn"]].append(function.name)
    return [
        wrong(f"{', '.join(names)}: the layer {arn} is not of this deployment", _DEPLOY)
        for arn, names in sorted(strangers.items())
    ]
