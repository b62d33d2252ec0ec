"""All checks and their execution: of a stack, and of an account before a stack is deployed.

Before the first deployment: what AWS would refuse, and what to do.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from lakesync.analysis.connection import NO_ACCESS, fault_of, is_bug_to_show
from lakesync.cli.doctor import Diagnosis, Verdict, note, unchecked, well, wrong
from lakesync.cli.doctor.deployer import Asker, admission, filled, statements
from lakesync.cli.doctor.deployment import (
    RATES,
    RESERVED,
    Quota,
    check_alarms,
    check_clock,
    check_functions,
    check_gateway,
    check_quotas,
    check_service_quotas,
    check_stack,
    needs,
    quota_state,
    quotas_state,
    service_quotas,
)
from lakesync.cli.doctor.progress import (
    check_buffer_lag,
    check_connectors,
    check_destinations,
    check_lake_lag,
    check_queues,
    check_schedules,
)
from lakesync.cli.doctor.protection import check_bucket, check_permissions, check_restore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from lakesync.analysis.connection import Aws
    from lakesync.cli.doctor import Deployed

Subject = TypeVar("Subject")
Check: TypeAlias = "Callable[[Subject], Diagnosis | Iterable[Diagnosis]]"
"""Asks AWS what it needs to know, and returns its diagnoses."""

# --- of a deployed stack --------------------------------------------------------------------------


CHECKS: Final[dict[str, Check[Deployed]]] = {
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
    checks: Mapping[str, Check[Subject]], subject: Subject, skipped: Collection[str] = ()
) -> Iterator[tuple[str, list[Diagnosis]]]:
    """Run every check that is not skipped; if one fails, report that and continue.

    Without the stack nothing else can be checked.
    """
    for name, check in checks.items():
        if name in skipped:
            continue
        diagnoses = _examined(check, subject)
        yield name, diagnoses
        if check is check_stack and diagnoses[0].verdict is Verdict.UNCHECKED:
            break


def _examined(check: Check[Subject], subject: Subject) -> list[Diagnosis]:
    """Run a check; if AWS does not answer it, that is its diagnosis."""
    try:
        answer = check(subject)
        return [answer] if isinstance(answer, Diagnosis) else list(answer)
    except Exception as exc:
        if is_bug_to_show(exc):
            raise
        fault = fault_of(exc)
        do = _MAY_ASK if fault.exit_code == NO_ACCESS else _ANSWER
        return [unchecked(fault.sentence, do)]


# --- of an account, before a stack is deployed to it ----------------------------------------------


DEFAULTS: Final[Mapping[str, str]] = {
    "SocketAccessLogs": "off", "LakePermissions": "iam", "GlueVersion": "5.1",
    "RequestRates": "500,2000,100,1000,2000", "Concurrency": "0,0,0,0,10",
}  # fmt: skip
"""The template's own, of the parameters that decide what an account must have."""
LISTS: Final = ("RequestRates", "Concurrency")
"""Those that are lists of numbers."""
UNRESERVED_MIN: Final = 100
"""Concurrent executions that Lambda keeps back from reservations (Lambda's developer guide,
"Configuring reserved concurrency")."""
SAM_MIN: Final = (1, 160)
"""Knows ``Fn::ForEach`` everywhere in a template."""
ACTIONS_MAX: Final = 100
"""Actions that one simulation is asked about, as IAM takes no endless list."""
_EVERYWHERE: Final = "5.1"
"""The version of Glue that is in every Region which has Glue."""
_MANAGED_STACK: Final = "aws-sam-cli-managed-default"
_AWS_KEY: Final = "alias/aws/s3"
DECRYPTS: Final = "kms:Decrypt"
ENCRYPTS: Final = "kms:GenerateDataKey"
_IAM: Final = "IAM_ALLOWED_PRINCIPALS"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Ahead:
    """An account, and how a stack is to be deployed to it."""

    aws: Aws
    stack: str
    artefacts: str = ""
    """The bucket for built packages; without it the one that `sam deploy --resolve-s3` makes."""
    given: Mapping[str, str] = field(default_factory=dict)

    def parameter(self, name: str) -> str:
        """Return a parameter of the deployment, as given or by default."""
        return self.given.get(name, DEFAULTS[name])

    def numbers(self, name: str) -> list[int]:
        return [int(each) for each in self.parameter(name).split(",")]


def check_log_role(ahead: Ahead) -> Diagnosis:
    """Check the account's log role of API Gateway, without which it refuses WebSockets' logs."""
    chosen = ahead.parameter("SocketAccessLogs")
    if chosen != "on":
        return well(f"no log role of API Gateway is needed: SocketAccessLogs is {chosen}")
    role = ahead.aws.client("apigateway").get_account().get("cloudwatchRoleArn")
    if role:
        return well(f"API Gateway logs by {role}")
    return wrong(
        "API Gateway has no log role in this account and Region, and would refuse the stack",
        "deploy with SocketAccessLogs=with-role, which makes it, or leave them off",
    )


def check_quotas_ahead(ahead: Ahead) -> Diagnosis:
    """Check Lambda's concurrency: a new account may have ten."""
    account = ahead.aws.client("lambda").get_account_settings()["AccountLimit"]
    reserved = sum(ahead.numbers("Concurrency")[:RESERVED])
    return concurrency_state(
        account["ConcurrentExecutions"],
        account["UnreservedConcurrentExecutions"],
        reserved,
        _needs(ahead)["lambda"],
    )


def concurrency_state(limit: int, free: int, reserved: int, need: float) -> Diagnosis:
    if reserved and free - reserved < UNRESERVED_MIN:
        return wrong(
            f"Lambda would refuse the stack: it reserves {reserved} of {free} concurrent "
            f"executions, and {UNRESERVED_MIN} must stay free",
            "leave the reservations in Concurrency at 0 until Service Quotas has raised the "
            "account's",
        )
    if free >= need:
        return quota_state(Quota("Lambda: concurrent executions", free, need))
    return wrong(
        f"Lambda: {limit} concurrent executions, {free} of them free, and {need:,.0f} may be "
        "needed: the stack deploys, and answers more than that with 503, which clients repeat",
        "ask for 1,000 in Service Quotas (Lambda, concurrent executions, L-B99A9384), or lower "
        "RequestRates",
    )


def check_service_quotas_ahead(ahead: Ahead) -> list[Diagnosis]:
    """Check what only Service Quotas knows: API Gateway's rate, and Glue's runs."""
    return quotas_state(service_quotas(ahead.aws.client("service-quotas"), _needs(ahead)))


def _needs(ahead: Ahead) -> dict[str, float]:
    pushes_per_s, *others = ahead.numbers("RequestRates")[: len(RATES)]
    return needs(pushes_per_s, sum(others))


def check_glue(ahead: Ahead) -> Diagnosis:
    """Check that the Region has Glue, and the version; AWS lists versions nowhere."""
    import botocore.session

    region, version = ahead.aws.region or "", ahead.parameter("GlueVersion")
    session = botocore.session.get_session()
    partition = session.get_partition_for_region(region)
    return glue_state(region, version, session.get_available_regions("glue", partition))


def glue_state(region: str, version: str, regions: Collection[str]) -> Diagnosis:
    if region not in regions:
        return wrong(f"there is no Glue in {region}", "deploy to a Region that has it")
    if version == _EVERYWHERE:
        return well(f"Glue {version} in {region}")
    return unchecked(
        f"Glue {version} is not in every Region, and AWS lists it nowhere",
        f"look it up in Glue's release notes, or leave GlueVersion at {_EVERYWHERE}",
    )


def check_lake_formation(ahead: Ahead) -> Diagnosis:
    """Check who governs new databases of the catalogue: IAM, or Lake Formation."""
    settings = ahead.aws.client("lakeformation").get_data_lake_settings()["DataLakeSettings"]
    return lake_formation_state(settings, ahead.parameter("LakePermissions"))


def lake_formation_state(settings: Mapping[str, Any], chosen: str) -> Diagnosis:
    kinds = ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")
    by_iam = all(
        any(
            each.get("Principal", {}).get("DataLakePrincipalIdentifier") == _IAM
            for each in settings.get(kind, [])
        )
        for kind in kinds
    )
    if by_iam or chosen == "lakeformation":
        governs = "IAM" if by_iam else "Lake Formation"
        return well(f"{governs} governs new databases, and LakePermissions is {chosen}")
    return wrong(
        "Lake Formation governs new databases: the jobs could make no table",
        "deploy with LakePermissions=lakeformation, as a data lake administrator",
    )


def check_artefacts(ahead: Ahead) -> Diagnosis:
    """Check the key of the bucket from which jobs and functions are read."""
    bucket = ahead.artefacts or _managed_bucket(ahead)
    if not bucket:
        return well("sam deploy --resolve-s3 will make the bucket for built packages")
    s3 = ahead.aws.client("s3")
    rules = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    default = rules[0].get("ApplyServerSideEncryptionByDefault", {}) if rules else {}
    named = default.get("KMSMasterKeyID", _AWS_KEY)
    if not default.get("SSEAlgorithm", "").startswith("aws:kms") or named.endswith(_AWS_KEY):
        return well(f"the bucket {bucket} needs no rights on a key")
    key = ahead.aws.client("kms").describe_key(KeyId=named)["KeyMetadata"]
    if key["KeyManager"] == "AWS":
        return well(f"the bucket {bucket} needs no rights on a key")
    deployer, jobs = _admitted(ahead, key["Arn"])
    return key_state(bucket, key["Arn"], deployer=deployer, jobs=jobs)


def _managed_bucket(ahead: Ahead) -> str:
    formation = ahead.aws.client("cloudformation")
    try:
        stack = formation.describe_stacks(StackName=_MANAGED_STACK)["Stacks"][0]
    except formation.exceptions.ClientError as exc:
        if "does not exist" in str(exc):
            return ""
        raise
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}
    return str(outputs.get("SourceBucket", ""))


def _admitted(ahead: Ahead, key: str) -> tuple[bool | None, bool | None]:
    """Return whether the deployer and the jobs may use a key; None where that is not known."""
    answer = ahead.aws.client("kms").get_key_policy(KeyId=key, PolicyName="default")
    policy, region = json.loads(answer["Policy"]), ahead.aws.region or ""
    caller = ahead.aws.client("sts").get_caller_identity()["Arn"]
    _, partition, _, _, account, *_ = caller.split(":")
    # Its roles are made with the stack, and have no rights on keys of others.
    job = f"arn:{partition}:iam::{account}:role/{ahead.stack}-MaterialiseJobRole-x"
    jobs = admission(policy, DECRYPTS, Asker(job, region)).itself
    principal = principal_of(caller)
    if principal is None:
        return True, jobs  # the account itself, whom every key's policy should name
    uses = [admission(policy, action, Asker(principal, region)) for action in (DECRYPTS, ENCRYPTS)]
    by_iam = None
    if not all(use.itself for use in uses):
        by_iam = _may_use(ahead, principal, key)
    each = [
        True if use.itself or (use.by_iam and by_iam)
        else None if None in (use.itself, use.by_iam) else False
        for use in uses
    ]  # fmt: skip
    return (False if False in each else None if None in each else True), jobs


def _may_use(ahead: Ahead, principal: str, key: str) -> bool:
    """Return whether a principal's own policies let it use a key."""
    answer = ahead.aws.client("iam").simulate_principal_policy(
        PolicySourceArn=principal, ActionNames=[DECRYPTS, ENCRYPTS], ResourceArns=[key]
    )
    return all(each["EvalDecision"] == "allowed" for each in answer["EvaluationResults"])


def key_state(bucket: str, key: str, *, deployer: bool | None, jobs: bool | None) -> Diagnosis:
    """Decide by whether the deployer may use a bucket's key, and the roles of the jobs.

    Lambda reads code with the deployer's rights, Glue a script with those of the job's role.
    """
    whom = {"who deploys": deployer, "the jobs' roles": jobs}
    lacking = [who for who, may in whom.items() if may is False]
    unknown = [who for who, may in whom.items() if may is None]
    if lacking:
        return wrong(
            f"the bucket {bucket} is encrypted by the key {key}, which lets "
            f"{' and '.join(lacking)} not use it: packages or scripts could not be read",
            "in the key's policy allow kms:Decrypt and kms:GenerateDataKey to principals of "
            "the account where kms:ViaService is s3.REGION.amazonaws.com, or name a bucket "
            "without it (sam deploy --s3-bucket)",
        )
    if unknown:
        return unchecked(
            f"the policy of the key {key}, by which the bucket {bucket} is encrypted, has "
            f"conditions that say whether {' and '.join(unknown)} may use it",
            "see that they may: kms:Decrypt, and for who deploys kms:GenerateDataKey",
        )
    return well(f"the key of the bucket {bucket} lets who deploys and the jobs read it")


def check_rights(ahead: Ahead) -> Diagnosis:
    """Simulate the deployer's least policy for the caller."""
    caller = ahead.aws.client("sts").get_caller_identity()
    principal = principal_of(caller["Arn"])
    if principal is None:
        return note(f"{caller['Arn']} may do everything, or cannot be simulated")
    iam, denied = ahead.aws.client("iam"), set()
    partition = caller["Arn"].split(":")[1]
    for actions, resource in _asked(ahead, partition, caller["Account"]):
        for at in range(0, len(actions), ACTIONS_MAX):
            answer = iam.simulate_principal_policy(
                PolicySourceArn=principal,
                ActionNames=actions[at : at + ACTIONS_MAX],
                ResourceArns=[resource],
            )
            denied |= {
                each["EvalActionName"]
                for each in answer["EvaluationResults"]
                if each["EvalDecision"] != "allowed"
            }
    if not denied:
        return well(f"{principal} has every right that a deployment needs")
    return wrong(
        f"{principal} may not {', '.join(sorted(denied))}",
        "attach the policies of docs/deployer to it, or deploy by another role",
    )


def principal_of(arn: str) -> str | None:
    """Return the user or role behind a caller; None for the account's root."""
    if ":assumed-role/" in arn:
        head, role, *_ = arn.replace(":sts:", ":iam:").replace(":assumed-role/", "/").split("/")
        return f"{head}:role/{role}"
    return arn if ":user/" in arn else None


def _asked(ahead: Ahead, partition: str, account: str) -> Iterator[tuple[list[str], str]]:
    """Yield what the policy allows, by resource as the stack's would be named."""
    names = {
        "PARTITION": partition, "REGION": ahead.aws.region or "", "ACCOUNT": account,
        "BUCKETS": ahead.stack.lower(), "STACK": ahead.stack,
        "ARTEFACTS": ahead.artefacts or f"{_MANAGED_STACK}-x",
    }  # fmt: skip
    asked: dict[str, list[str]] = defaultdict(list)
    for statement in statements():
        if "Condition" not in statement:  # to pass a role is asked for a service
            resource = filled(statement["Resource"][0], names)
            asked[resource if resource == "*" else resource.replace("*", "x")] += statement[
                "Action"
            ]
    return ((sorted(set(actions)), resource) for resource, actions in asked.items())


def check_sam(_ahead: Ahead) -> Diagnosis:
    """Check the version of SAM's command line on this machine."""
    program = shutil.which("sam")
    if program is None:
        return unchecked("there is no sam on this machine", "install AWS SAM CLI 1.160 or newer")
    answer = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    return sam_state(answer.stdout)


def sam_state(text: str) -> Diagnosis:
    least = ".".join(map(str, SAM_MIN))
    match = _VERSION.search(text)
    if match is None:
        return unchecked("sam does not say its version", f"install AWS SAM CLI {least} or newer")
    if tuple(map(int, match.groups())) < SAM_MIN:
        return wrong(f"AWS SAM CLI {match[0]} is too old", f"install {least} or newer")
    return well(f"AWS SAM CLI {match[0]}")


CHECKS_AHEAD: Final[dict[str, Check[Ahead]]] = {
    "log-role": check_log_role,
    "quotas": check_quotas_ahead,
    "service-quotas": check_service_quotas_ahead,
    "glue": check_glue,
    "lake-formation": check_lake_formation,
    "artefacts": check_artefacts,
    "rights": check_rights,
    "sam": check_sam,
}
"""The checks ahead, in the order of the report."""
