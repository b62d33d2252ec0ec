"""Checks of what protects a stack: the permissions of its roles, and the recovery of its data.

IAM's simulation shows whether every role may do what the deployed template says. A role's
permissions depend on more than its policies: permissions boundaries, the organisation's policies,
manual changes. So each statement of the template is simulated.

CloudFormation's functions in the template are evaluated only as far as names of resources and
permissions need them: ``Ref``, ``GetAtt`` of names and ARNs, ``Sub``, ``Join``, ``If``,
``FindInMap`` and the conditions. Anything else is `Unresolved`, never guessed.

Data is protected by backups and protection of the buffer, and versions in the bucket. DynamoDB
restores items, keys and encryption, but neither recovery, nor deletion protection, nor the stream;
what a restored table lacks is enabled here
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/pointintimerecovery_howitworks.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, WaiterError

from lakesync.cli.doctor import duration, unchecked, well, wrong
from lakesync.core.wording import plural
from lakesync.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from lakesync.cli.doctor import Deployed, Diagnosis

# --- CloudFormation's functions -------------------------------------------------------------------


_VARIABLE: Final = re.compile(r"\$\{(!?)([^}]+)\}")
_ARN_FORMS: Final = {
    "AWS::DynamoDB::Table": "arn:{partition}:dynamodb:{region}:{account}:table/{name}",
    "AWS::SQS::Queue": "arn:{partition}:sqs:{region}:{account}:{name}",
    "AWS::S3::Bucket": "arn:{partition}:s3:::{name}",
    "AWS::Lambda::Function": "arn:{partition}:lambda:{region}:{account}:function:{name}",
    "AWS::Logs::LogGroup": "arn:{partition}:logs:{region}:{account}:log-group:{name}:*",
    "AWS::IAM::Role": "arn:{partition}:iam::{account}:role/{name}",
    "AWS::KMS::Key": "arn:{partition}:kms:{region}:{account}:key/{name}",
}


class Unresolved(ValueError):
    """A value that only CloudFormation knows."""


@dataclass(frozen=True)
class Names:
    """The values of the names in a template.

    Attributes:
        template: the processed template.
        parameters: each parameter's value.
        resources: each resource's physical id; those that a condition left out are not there.
        outputs: each output's value, which says what attributes are that an output shows.
        partition: ``aws``, as a rule.
        region: where the stack is.
        account: whose it is.
        stack: its name.
    """

    template: Mapping[str, Any]
    parameters: Mapping[str, str]
    resources: Mapping[str, str]
    outputs: Mapping[str, str]
    partition: str
    region: str
    account: str
    stack: str

    def value(self, node: Any) -> Any:
        """Work a value out, or raise `Unresolved`."""
        if isinstance(node, list):
            return [self.value(part) for part in node]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            [(name, argument)] = node.items()
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](self, argument)
            if name.startswith("Fn::"):
                raise Unresolved(name)
        return {name: self.value(part) for name, part in node.items()}

    def holds(self, condition: Any) -> bool:
        if isinstance(condition, str):
            return self.holds(self.template["Conditions"][condition])
        return bool(self.value(condition))

    def ref(self, name: str) -> str:
        pseudo = {
            "AWS::Partition": self.partition,
            "AWS::Region": self.region,
            "AWS::AccountId": self.account,
            "AWS::StackName": self.stack,
            "AWS::NoValue": "",
        }
        for names in (pseudo, self.parameters, self.resources):
            if name in names:
                return names[name]
        raise Unresolved(name)

    def attribute(self, path: list[str]) -> str:
        """Return the value of ``GetAtt`` for attributes that are names or ARNs."""
        logical, attribute = path[0], ".".join(path[1:])
        if (shown := self._shown.get((logical, attribute))) is not None:
            return shown
        physical = self.ref(logical)
        if attribute == "Id" or (attribute == "Arn" and physical.startswith("arn:")):
            return physical
        name = physical.rpartition("/")[2] if "://" in physical else physical
        if attribute in {"QueueName", "Name"}:
            return name
        form = _ARN_FORMS.get(self.template["Resources"][logical]["Type"])
        if attribute != "Arn" or form is None:
            raise Unresolved(f"{logical}.{attribute}")
        return form.format(
            partition=self.partition, region=self.region, account=self.account, name=name
        )

    @cached_property
    def _shown(self) -> dict[tuple[str, str], str]:
        """The attributes that outputs show, with their values."""
        shown = {}
        for name, output in self.template.get("Outputs", {}).items():
            path = output["Value"].get("Fn::GetAtt") if isinstance(output["Value"], dict) else None
            if path and name in self.outputs:
                logical, attribute = path.split(".", 1) if isinstance(path, str) else path
                shown[logical, attribute] = self.outputs[name]
        return shown

    def substituted(self, argument: Any) -> str:
        text, own = argument if isinstance(argument, list) else (argument, {})

        def replaced(match: re.Match[str]) -> str:
            literal, name = match[1], match[2]
            if literal:
                return "${" + name + "}"
            if name in own:
                return str(self.value(own[name]))
            return self.attribute(name.split(".")) if "." in name else self.ref(name)

        return _VARIABLE.sub(replaced, text)


def _chosen(names: Names, argument: list[Any]) -> Any:
    condition, then, otherwise = argument
    return names.value(then if names.holds(condition) else otherwise)


def _get_att(names: Names, argument: Any) -> str:
    return names.attribute(argument if isinstance(argument, list) else argument.split("."))


def _equals(names: Names, argument: list[Any]) -> bool:
    one, other = map(names.value, argument)
    return str(one) == str(other)


def _in_map(names: Names, argument: list[Any]) -> Any:
    where, key, inner = map(names.value, argument)
    return names.template["Mappings"][where][key][inner]


_FUNCTIONS: Final[dict[str, Callable[[Names, Any], Any]]] = {
    "Ref": Names.ref,
    "Condition": Names.holds,
    "Fn::GetAtt": _get_att,
    "Fn::Sub": Names.substituted,
    "Fn::If": _chosen,
    "Fn::Join": lambda names, argument: argument[0].join(map(str, names.value(argument[1]))),
    "Fn::FindInMap": _in_map,
    "Fn::Equals": _equals,
    "Fn::Not": lambda names, argument: not names.holds(argument[0]),
    "Fn::And": lambda names, argument: all(names.holds(part) for part in argument),
    "Fn::Or": lambda names, argument: any(names.holds(part) for part in argument),
}


# --- checks ---------------------------------------------------------------------------------------


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


# --- protection of a table ------------------------------------------------------------------------


RECOVERY: Final = "point-in-time recovery"
PROTECTION: Final = "deletion protection"
STREAM: Final = "stream"
STREAM_VIEW: Final = "NEW_IMAGE"
"""The view type of the stream of the stack's table."""
_NOT_YET: Final = frozenset(
    {"ContinuousBackupsUnavailableException", "LimitExceededException", "ResourceInUseException"}
)
_POLL_S: Final = 2
_POLLS_MAX: Final = 60


def protect(client: Any, table: str) -> list[str]:
    """Protect a table, and wait until that is active; return what was off. Safe to repeat."""
    off = missing(_described(client, table), _backups(client, table))
    try:
        if RECOVERY in off:
            wanted = {"PointInTimeRecoveryEnabled": True}
            client.update_continuous_backups(
                TableName=table, PointInTimeRecoverySpecification=wanted
            )
        if PROTECTION in off:
            client.update_table(TableName=table, DeletionProtectionEnabled=True)
            _wait(client, table)
        if STREAM in off:
            stream = {"StreamEnabled": True, "StreamViewType": STREAM_VIEW}
            client.update_table(TableName=table, StreamSpecification=stream)
            _wait(client, table)
    except ClientError as exc:
        if exc.response["Error"]["Code"] in _NOT_YET:
            raise Unavailable(
                f"DynamoDB still prepares the table {table}; try again in a minute"
            ) from exc
        raise
    return off


def missing(table: Mapping[str, Any], backups: Mapping[str, Any]) -> list[str]:
    """Return the protections that are off, by the descriptions of a table and of its backups."""
    recovery = backups.get("PointInTimeRecoveryDescription", {})
    on = {
        RECOVERY: recovery.get("PointInTimeRecoveryStatus") == "ENABLED",
        PROTECTION: bool(table.get("DeletionProtectionEnabled")),
        STREAM: bool((table.get("StreamSpecification") or {}).get("StreamEnabled")),
    }
    return [name for name, is_on in on.items() if not is_on]


def _described(client: Any, table: str) -> dict[str, Any]:
    try:
        described: dict[str, Any] = client.describe_table(TableName=table)["Table"]
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "ResourceNotFoundException":
            raise NotFound(f"there is no table {table}: check its name and AWS_REGION") from exc
        raise
    if described["TableStatus"] != "ACTIVE":
        raise Unavailable(
            f"the table {table} is {described['TableStatus']}: a restore takes minutes to hours; "
            "try again when it is ACTIVE"
        )
    return described


def _backups(client: Any, table: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.describe_continuous_backups(TableName=table)
    return dict(answer["ContinuousBackupsDescription"])


def _wait(client: Any, table: str) -> None:
    """Wait until a change is active: DynamoDB accepts one at a time."""
    try:
        client.get_waiter("table_exists").wait(
            TableName=table, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _POLLS_MAX}
        )
    except WaiterError as exc:
        raise Unavailable(f"the table {table} is still being changed; try again") from exc


# --- checks ---------------------------------------------------------------------------------------


PROTECTED: Final = "prod"
"""The stage whose data outlives its stack."""


@dataclass(frozen=True, slots=True)
class Table:
    """The protection of the buffer's table in use."""

    name: str
    restored: bool
    """Whether it is used in place of the stack's own table."""
    stage: str
    off: tuple[str, ...]
    """What is off of what `protect` enables."""
    earliest: datetime | None
    """The earliest moment to restore to."""
    backups: int


def check_restore(deployed: Deployed) -> list[Diagnosis]:
    """Check that the buffer's table in use can be restored, and is protected from deletion."""
    name = deployed.aws.output("BufferTable")
    client = deployed.client("dynamodb")
    table = client.describe_table(TableName=name)["Table"]
    continuous = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    recovery = continuous.get("PointInTimeRecoveryDescription", {})
    backups = client.list_backups(TableName=name, BackupType="ALL")["BackupSummaries"]
    facts = Table(
        name,
        restored=bool(deployed.parameters.get("BufferTableName")),
        stage=deployed.parameters.get("Stage", PROTECTED),
        off=tuple(missing(table, continuous)),
        earliest=recovery.get("EarliestRestorableDateTime"),
        backups=len(backups),
    )
    return restore_state(facts, deployed.now_s)


def restore_state(table: Table, now_s: float) -> list[Diagnosis]:
    # A restored table belongs to no stack, whatever the stage: it is protected or it is not.
    kept = table.restored or table.stage == PROTECTED
    needed = [RECOVERY, STREAM, *([PROTECTION] if kept else [])]
    do = (
        f"lakesync restored {table.name} switches it on, and begins a new epoch; or by hand: "
        "docs/operations.md"
        if table.restored
        else "deploy again: the template has it on"
    )
    faults = [
        wrong(f"{name} is off for the table {table.name}", do)
        for name in table.off
        if name in needed
    ]
    if faults:
        return faults
    since = "" if table.earliest is None else duration(now_s - table.earliest.timestamp())
    which = "a restored table" if table.restored else "the stack's own table"
    reach = f"can be restored to any moment of the last {since}" if since else "can be restored"
    protected = "" if kept else f"; the stage {table.stage} lets it be deleted"
    more = f", and from {plural(table.backups, 'backup')}" if table.backups else ""
    return [well(f"{which}, {table.name}, {reach}{more}{protected}")]


def check_bucket(deployed: Deployed) -> Diagnosis:
    """Check that deleted or overwritten objects in the lake's bucket can be restored."""
    bucket = deployed.aws.output("LakeBucket")
    client = deployed.client("s3")
    return bucket_state(bucket, client.get_bucket_versioning(Bucket=bucket).get("Status", ""))


def bucket_state(bucket: str, versioning: str) -> Diagnosis:
    if versioning == "Enabled":
        return well(f"{bucket} keeps versions")
    return wrong(
        f"{bucket} keeps no versions: what is deleted in the lake is gone",
        "deploy again, or aws s3api put-bucket-versioning --versioning-configuration "
        f"Status=Enabled --bucket {bucket}",
    )
