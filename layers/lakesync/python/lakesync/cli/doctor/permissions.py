"""Checks by IAM's simulation that every role may do what the deployed template says.

A role's permissions depend on more than its policies: permissions boundaries, the organisation's
policies, manual changes. So each statement of the template is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.doctor.diagnosis import unchecked, well, wrong
from lakesync.cli.doctor.intrinsics import Names, Unresolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

_ANY: Final = "x"
"""The text in place of a wildcard in a simulated name."""
_ROLE: Final = "AWS::IAM::Role"
_POLICY: Final = "AWS::IAM::Policy"


@dataclass(frozen=True, slots=True)
class Need:
    """The actions that one role needs on one resource."""

    role: str
    actions: tuple[str, ...]
    resource: str
    context: tuple[tuple[str, str, str], ...] = ()
    """Condition keys, their type, and the value that each request has."""


@dataclass(frozen=True, slots=True)
class Denied:
    """An action that a role needs and is denied, and by what."""

    role: str
    action: str
    resource: str
    by: str


def check_permissions(deployed: Deployed) -> list[Diagnosis]:
    """Simulate every statement of the deployed template."""
    names = _names(deployed)
    needs, unknown = needed(names)
    client = deployed.client("iam")
    root = f"arn:{names.partition}:iam::{names.account}:role/"
    denied = [
        denial
        for need in needs
        for denial in _denials(client, root + names.resources[need.role], need)
    ]
    return permissions_state(len(needs), denied, unknown)


def _names(deployed: Deployed) -> Names:
    answer = deployed.client("cloudformation").get_template(
        StackName=deployed.aws.stack, TemplateStage="Processed"
    )
    # arn:partition:cloudformation:region:account:stack/…
    _, partition, _, region, account, _ = deployed.stack["StackId"].split(":", 5)
    return Names(
        template=answer["TemplateBody"],
        parameters=deployed.parameters,
        resources={resource.logical: resource.physical for resource in deployed.resources},
        outputs=deployed.aws.outputs,
        partition=partition,
        region=region,
        account=account,
        stack=deployed.aws.stack,
    )


def needed(names: Names) -> tuple[list[Need], list[str]]:
    """Return what each role needs, and which roles have a statement that cannot be evaluated."""
    needs: list[Need] = []
    unknown: list[str] = []
    for role, statement in _statements(names):
        try:
            needs += needs_of(names, role, statement)
        except Unresolved as exc:
            unknown.append(f"{role}: {exc}")
    return needs, unknown


def _statements(names: Names) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for logical, resource in names.template["Resources"].items():
        if logical not in names.resources:
            continue  # excluded by a condition
        properties = resource.get("Properties", {})
        if resource["Type"] == _ROLE:
            documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
            roles = [logical]
        elif resource["Type"] == _POLICY:
            documents = [properties["PolicyDocument"]]
            named = [role["Ref"] for role in properties.get("Roles", []) if "Ref" in role]
            roles = [role for role in named if role in names.resources]
        else:
            continue
        for document in documents:
            for statement in _many(document["Statement"]):
                yield from ((role, statement) for role in roles)


def needs_of(names: Names, role: str, statement: Mapping[str, Any]) -> Iterator[Need]:
    """Yield the permissions of one statement of the template.

    Raises:
        Unresolved: it cannot be evaluated.
    """
    statement = names.value(statement)
    if not statement or statement["Effect"] != "Allow":
        return  # may be excluded by a condition
    actions = tuple(action for action in _many(statement["Action"]) if "*" not in action)
    context = tuple(_context(statement.get("Condition") or {}))
    # A parameter that is a list of ARNs has commas between them.
    named = [part for resource in _many(statement["Resource"]) for part in resource.split(",")]
    for resource in filter(None, named):
        asked = resource if resource == "*" else resource.replace("*", _ANY)
        yield Need(role, actions, asked, context)


def _context(
    condition: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, str, str]]:
    for operator, keys in condition.items():
        quantifier, _, plain = operator.rpartition(":")
        if not plain.startswith(("String", "Arn")) or "Not" in plain:
            raise Unresolved(f"condition {operator}")
        kind = "stringList" if quantifier else "string"
        for key, values in keys.items():
            yield key, kind, str(_many(values)[0]).replace("*", _ANY)


def _denials(client: Any, arn: str, need: Need) -> Iterator[Denied]:
    entries = [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": kind}
        for key, kind, value in need.context
    ]
    answer = client.simulate_principal_policy(
        PolicySourceArn=arn,
        ActionNames=list(need.actions),
        ResourceArns=[need.resource],
        ContextEntries=entries,
    )
    for result in answer["EvaluationResults"]:
        if result["EvalDecision"] != "allowed":
            yield Denied(need.role, result["EvalActionName"], need.resource, _by(result))


def _by(result: Mapping[str, Any]) -> str:
    """Return what decided it, if IAM shows that."""
    if not result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True):
        return "a policy of the organisation"
    boundary = result.get("PermissionsBoundaryDecisionDetail", {})
    if not boundary.get("AllowedByPermissionsBoundary", True):
        return "the role's permissions boundary"
    return "an explicit deny" if result["EvalDecision"] == "explicitDeny" else "no policy allows it"


def permissions_state(
    asked: int, denied: Iterable[Denied], unknown: Iterable[str]
) -> list[Diagnosis]:
    """Decide by what the simulation denied, and by what could not be simulated."""
    faults = [
        wrong(
            f"{denial.role} may not {denial.action} on {denial.resource}: {denial.by}",
            "deploy again if the role was edited; else have the boundary or the organisation's "
            "policy allow it",
        )
        for denial in denied
    ]
    rest = [
        unchecked(f"a permission cannot be worked out: {what}", "look at the role by hand")
        for what in unknown
    ]
    return [*(faults or [well(f"{asked} permissions are in force")]), *rest]


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
