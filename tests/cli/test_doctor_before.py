"""An account is checked before a deployment: each thing that AWS would refuse, with what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli.doctor import Verdict, checks
from lakesync.cli.doctor.checks import Ahead
from tests.infrastructure.stack import template
from tests.support.command_lines import run
from tests.support.stubbed_account import Account

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.cli.doctor import Diagnosis

ROLE = "arn:aws:sts::123456789012:assumed-role/deployer/me"


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account("trial")
    with account.open:
        yield account


def ahead(account: Account, artefacts: str = "", **given: str) -> Ahead:
    return Ahead(account, "trial", artefacts, given)


def told(one: Diagnosis) -> tuple[Verdict, str, str]:
    assert one.verdict in {Verdict.WELL, Verdict.NOTE} or one.do, "it says what to do"
    return one.verdict, one.what, one.do


def test_doctor_defaults_are_those_of_the_template() -> None:
    declared = template()["Parameters"]
    assert {name: str(declared[name]["Default"]) for name in checks.DEFAULTS} == checks.DEFAULTS


def test_a_missing_log_role_is_a_fault_only_with_socket_access_logs(
    account: Account,
) -> None:
    assert told(checks.check_log_role(ahead(account)))[0] is Verdict.WELL
    made = ahead(account, SocketAccessLogs="with-role")
    assert told(checks.check_log_role(made))[0] is Verdict.WELL
    account.answers("apigateway", "get_account", {})
    logged = ahead(account, SocketAccessLogs="on")
    verdict, what, do = told(checks.check_log_role(logged))
    assert (verdict, "would refuse the stack" in what) == (Verdict.WRONG, True)
    assert "with-role" in do
    account.answers("apigateway", "get_account", {"cloudwatchRoleArn": "arn:aws:iam::1:role/a"})
    assert told(checks.check_log_role(logged))[0] is Verdict.WELL


def limits(total: int, free: int) -> dict[str, Any]:
    return {"AccountLimit": {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": free}}


@pytest.mark.parametrize(
    ("total", "given", "verdict", "advice"),
    [
        (1_000, {}, Verdict.WELL, ""),
        (1_000, {"Concurrency": "900,0,0,0,10"}, Verdict.WELL, ""),
        (10, {}, Verdict.WRONG, "L-B99A9384"),
        (10, {"RequestRates": "20,20,20,20,20"}, Verdict.WRONG, "L-B99A9384"),
        (100, {"RequestRates": "20,20,20,20,20"}, Verdict.WELL, ""),
        (10, {"Concurrency": "5,0,0,0,10"}, Verdict.WRONG, "at 0"),
        (1_000, {"Concurrency": "901,0,0,0,10"}, Verdict.WRONG, "at 0"),
    ],
)
def test_insufficient_concurrent_executions_are_a_fault_with_advice(
    account: Account, total: int, given: dict[str, str], verdict: Verdict, advice: str
) -> None:
    account.answers("lambda", "get_account_settings", limits(total, total))
    decided, _, do = told(checks.check_quotas_ahead(ahead(account, **given)))
    assert (decided, advice in do) == (verdict, True)


@pytest.mark.parametrize(
    ("region", "version", "verdict"),
    [
        ("eu-west-1", "5.1", Verdict.WELL),
        ("eu-west-1", "6.0", Verdict.UNCHECKED),
        ("moon-1", "5.1", Verdict.WRONG),
    ],
)
def test_a_glue_version_is_judged_by_version_and_region(
    region: str, version: str, verdict: Verdict
) -> None:
    assert told(checks.glue_state(region, version, ["eu-west-1"]))[0] is verdict


BY_IAM = {
    kind: [{"Principal": {"DataLakePrincipalIdentifier": "IAM_ALLOWED_PRINCIPALS"}}]
    for kind in ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")
}


@pytest.mark.parametrize(
    ("settings", "chosen", "verdict"),
    [
        (BY_IAM, "iam", Verdict.WELL),
        ({}, "iam", Verdict.WRONG),
        (BY_IAM | {"CreateTableDefaultPermissions": []}, "iam", Verdict.WRONG),
        ({}, "lakeformation", Verdict.WELL),
    ],
)
def test_lake_formation_permissions_require_the_template_parameter(
    account: Account, settings: dict[str, Any], chosen: str, verdict: Verdict
) -> None:
    account.answers("lakeformation", "get_data_lake_settings", {"DataLakeSettings": settings})
    decided, _, do = told(checks.check_lake_formation(ahead(account, LakePermissions=chosen)))
    assert decided is verdict
    assert ("LakePermissions=lakeformation" in do) == (verdict is Verdict.WRONG)


KEY = "arn:aws:kms:eu-west-1:123456789012:key/2"
DEPLOYER, ROOT = (f"arn:aws:iam::123456789012:{name}" for name in ("role/deployer", "root"))


def encrypted(account: Account, **default: str) -> None:
    rules = [{"ApplyServerSideEncryptionByDefault": default}]
    answer = {"ServerSideEncryptionConfiguration": {"Rules": rules}}
    account.answers("s3", "get_bucket_encryption", answer)


@pytest.mark.parametrize(
    "default",
    [
        {"SSEAlgorithm": "AES256"},
        {"SSEAlgorithm": "aws:kms"},
        {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:a:1:alias/aws/s3"},
    ],
)
def test_an_artefact_bucket_without_a_customer_key_needs_no_rights(
    account: Account, default: dict[str, str]
) -> None:
    encrypted(account, **default)
    assert told(checks.check_artefacts(ahead(account, "packages")))[0] is Verdict.WELL


def described(account: Account, manager: str = "CUSTOMER") -> None:
    metadata = {"KeyId": "2", "Arn": KEY, "KeyManager": manager}
    account.answers("kms", "describe_key", {"KeyMetadata": metadata}, {"KeyId": "alias/packages"})


def test_an_aws_managed_key_of_the_artefact_bucket_needs_no_rights(account: Account) -> None:
    encrypted(account, SSEAlgorithm="aws:kms", KMSMasterKeyID="alias/packages")
    described(account, "AWS")
    assert told(checks.check_artefacts(ahead(account, "packages")))[0] is Verdict.WELL


def grant(principal: str, *actions: str, effect: str = "Allow", **condition: Any) -> dict[str, Any]:
    return {
        "Effect": effect, "Principal": {"AWS": principal}, "Resource": "*",
        "Action": list(actions) or ["kms:Decrypt", "kms:GenerateDataKey*"],
        **({"Condition": condition} if condition else {}),
    }  # fmt: skip


BY_S3 = {"kms:ViaService": "s3.eu-west-1.amazonaws.com", "kms:CallerAccount": "123456789012"}
EVERYBODY = grant("*", StringEquals=BY_S3)
BY_IAM_ALONE = grant(ROOT, "kms:*")
JOBS = grant("*", ArnLike={"aws:PrincipalArn": "arn:aws:iam::123456789012:role/trial-*"})
IN_ORGANISATION = grant("*", StringEquals={"aws:PrincipalOrgID": "o-1"})


@pytest.mark.parametrize(
    ("statements", "denied", "verdict", "lacking"),
    [
        ([EVERYBODY], [], Verdict.WELL, ""),
        ([BY_IAM_ALONE, EVERYBODY], [], Verdict.WELL, ""),
        ([BY_IAM_ALONE], [], Verdict.WRONG, "lets the jobs' roles not"),
        ([BY_IAM_ALONE], ["kms:Decrypt"], Verdict.WRONG, "who deploys and the jobs' roles"),
        ([BY_IAM_ALONE, JOBS], [], Verdict.WELL, ""),
        ([BY_IAM_ALONE, JOBS], ["kms:GenerateDataKey"], Verdict.WRONG, "lets who deploys not"),
        ([grant(DEPLOYER), JOBS], [], Verdict.WELL, ""),
        ([grant(DEPLOYER, "kms:Decrypt"), JOBS], [], Verdict.WRONG, "lets who deploys not"),
        ([grant("*", StringEquals=BY_S3 | {"kms:ViaService": "ec2.eu-west-1.amazonaws.com"})], [],
         Verdict.WRONG, "who deploys and the jobs' roles"),
        ([EVERYBODY, grant("*", effect="Deny")], [], Verdict.WRONG, "who deploys and"),
        ([IN_ORGANISATION], [], Verdict.UNCHECKED, "who deploys and the jobs' roles"),
        ([EVERYBODY, IN_ORGANISATION | {"Effect": "Deny"}], [], Verdict.UNCHECKED, "who deploys"),
    ],
)  # fmt: skip
def test_a_customer_key_is_a_fault_only_if_the_deployer_or_jobs_cannot_use_it(
    account: Account,
    statements: list[dict[str, Any]],
    denied: list[str],
    verdict: Verdict,
    lacking: str,
) -> None:
    encrypted(account, SSEAlgorithm="aws:kms:dsse", KMSMasterKeyID="alias/packages")
    described(account)
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    account.answers("kms", "get_key_policy", {"Policy": policy})
    caller = {"Arn": ROLE, "Account": "123456789012", "UserId": "u"}
    account.answers("sts", "get_caller_identity", caller)
    account._stubbed["iam"] = Simulated(frozenset(denied))

    decided, what, do = told(checks.check_artefacts(ahead(account, "packages")))

    assert (decided, lacking in what) == (verdict, True), what
    assert ("kms:Decrypt" in do) == (verdict is not Verdict.WELL)


def test_an_artefact_bucket_still_to_be_created_by_sam_passes(account: Account) -> None:
    account.client("cloudformation")
    account.stubs["cloudformation"].add_client_error(
        "describe_stacks", "ValidationError", "Stack with id x does not exist"
    )
    assert told(checks.check_artefacts(ahead(account)))[0] is Verdict.WELL


class Simulated:
    """IAM's simulation, which denies some actions."""

    def __init__(self, denied: frozenset[str]) -> None:
        self._denied = denied
        self.asked: set[tuple[str, str]] = set()

    def simulate_principal_policy(self, **asked: Any) -> dict[str, Any]:
        assert asked["PolicySourceArn"] == "arn:aws:iam::123456789012:role/deployer"
        [resource] = asked["ResourceArns"]
        self.asked |= {(action, resource) for action in asked["ActionNames"]}
        return {
            "EvaluationResults": [
                {"EvalActionName": each,
                 "EvalDecision": "implicitDeny" if each in self._denied else "allowed"}
                for each in asked["ActionNames"]
            ]
        }  # fmt: skip


@pytest.mark.parametrize("denied", [frozenset[str](), frozenset({"glue:CreateJob"})])
def test_permissions_that_the_deployer_lacks_are_named(
    account: Account, denied: frozenset[str]
) -> None:
    caller = {"Arn": ROLE, "Account": "123456789012", "UserId": "u"}
    account.answers("sts", "get_caller_identity", caller)
    account._stubbed["iam"] = iam = Simulated(denied)
    verdict, what, do = told(checks.check_rights(ahead(account)))
    assert (verdict, "docs/deployer" in do) == (
        (Verdict.WRONG, True) if denied else (Verdict.WELL, False)
    )
    assert all(each in what for each in denied)
    table = "arn:aws:dynamodb:eu-west-1:123456789012:table/trial-x"
    assert ("dynamodb:CreateTable", table) in iam.asked


@pytest.mark.parametrize(
    ("arn", "principal"),
    [
        (ROLE, "arn:aws:iam::123456789012:role/deployer"),
        ("arn:aws:iam::123456789012:user/ann", "arn:aws:iam::123456789012:user/ann"),
        ("arn:aws:iam::123456789012:root", None),
    ],
)
def test_a_caller_arn_resolves_to_its_user_or_role(arn: str, principal: str | None) -> None:
    assert checks.principal_of(arn) == principal


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("SAM CLI, version 1.160.0", Verdict.WELL),
        ("SAM CLI, version 2.0.1", Verdict.WELL),
        ("SAM CLI, version 1.99.0", Verdict.WRONG),
        ("", Verdict.UNCHECKED),
    ],
)
def test_the_sam_version_decides_the_verdict(text: str, verdict: Verdict) -> None:
    assert told(checks.sam_state(text))[0] is verdict


def before(*words: str) -> Any:
    return run("doctor", "--before", *words)


def test_doctor_before_deployment_reports_each_check_without_a_stack(
    empty_folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert empty_folder.is_dir()
    monkeypatch.setattr("lakesync.cli.session.Aws", lambda _connection: account)
    account.answers("apigateway", "get_account", {})
    wanted = {"log-role", "glue"}
    skipped = [word for name in set(checks.CHECKS_AHEAD) - wanted for word in ("--skip", name)]
    answered = before("--parameter", "SocketAccessLogs=on", *skipped)
    assert answered.exit_code == 1
    assert "WRONG        log-role: " in answered.stdout
    assert "well         glue: Glue 5.1 in eu-west-1" in answered.stdout


@pytest.mark.parametrize(
    "words", [("--skip", "alarms"), ("--parameter", "x"), ("--parameter", "RequestRates=many")]
)
def test_an_unknown_check_or_parameter_is_wrong_usage(
    empty_folder: Path, words: tuple[str, str]
) -> None:
    assert empty_folder.is_dir()
    assert before(*words).exit_code == 2
