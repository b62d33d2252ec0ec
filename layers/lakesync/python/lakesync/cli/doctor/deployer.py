"""The least that who deploys a stack must be allowed, by its resources and by the key's policy.

CloudFormation calls AWS with the deployer's rights. What it calls for a type is in the type's
schema in CloudFormation's registry (``handlers.permissions``); the names are those of the Service
Authorization Reference. Tests hold this table against the transformed template, and
``docs/deployer`` holds it as policies.

A key's policy admits a principal itself, or names the account, which leaves the decision to that
principal's own policies (KMS developer guide, "Key policies"). Conditions are read as far as what
they ask for is known here; another one makes the answer unknown.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

# --- resources ------------------------------------------------------------------------------------


_LONGEST: Final = {
    "PARTITION": "aws-us-gov", "REGION": "ap-southeast-1", "ACCOUNT": 12 * "0",
    "ARTEFACTS": 63 * "a", "BUCKETS": 32 * "a", "STACK": 32 * "a",
}  # fmt: skip
"""Names as long as they get; a stack's may be longer, and then seldom is."""
POLICY_CHARACTERS_MAX: Final = 6_144
"""Of a managed policy, white space not counted (IAM's quotas)."""


class Grant(NamedTuple):
    """Actions of one service, on resources of it."""

    service: str
    actions: str
    """Their names, with spaces between."""
    resources: tuple[str, ...] = ("*",)
    """What follows ``arn:PARTITION:`` and the service; ``*`` where the service knows no less."""

    def named(self) -> Iterator[str]:
        return (f"{self.service}:{action}" for action in self.actions.split())


_HERE: Final = ":REGION:ACCOUNT:"
_FUNCTIONS: Final = (f"{_HERE}function:STACK-*",)
_ROLES: Final = ("::ACCOUNT:role/STACK-*",)
_LOG_GROUPS: Final = tuple(
    f"{_HERE}log-group:{name}" for name in ("STACK-*", "/aws-glue/STACK/*", "/aws/*/STACK*")
)
_APIS: Final = (
    ":REGION::/apis", ":REGION::/apis/*", ":REGION::/domainnames", ":REGION::/domainnames/*",
    ":REGION::/tags/*",
)  # fmt: skip
_CATALOGUE: Final = (f"{_HERE}catalog", f"{_HERE}connection/*")
_GATEWAY: Final = Grant("apigateway", "GET POST PUT PATCH DELETE", _APIS)
_DELIVERS_LOGS: Final = Grant(
    "logs",
    "CreateLogDelivery GetLogDelivery UpdateLogDelivery DeleteLogDelivery ListLogDeliveries "
    "PutResourcePolicy DescribeResourcePolicies DescribeLogGroups",
)
_ROLE_POLICIES: Final = Grant("iam", "PutRolePolicy GetRolePolicy DeleteRolePolicy", _ROLES)

GRANTS: Final[Mapping[str, tuple[Grant, ...]]] = {
    "AWS::ApiGateway::Account": (Grant("apigateway", "GET PATCH", (":REGION::/account",)),),
    "AWS::ApiGatewayV2::Api": (_GATEWAY,),
    "AWS::ApiGatewayV2::ApiMapping": (_GATEWAY,),
    "AWS::ApiGatewayV2::Authorizer": (_GATEWAY,),
    "AWS::ApiGatewayV2::DomainName": (_GATEWAY,),
    "AWS::ApiGatewayV2::Integration": (_GATEWAY,),
    "AWS::ApiGatewayV2::IntegrationResponse": (_GATEWAY,),
    "AWS::ApiGatewayV2::Route": (_GATEWAY,),
    "AWS::ApiGatewayV2::RouteResponse": (_GATEWAY,),
    "AWS::ApiGatewayV2::Stage": (_GATEWAY, _DELIVERS_LOGS),
    "AWS::CloudFront::Distribution": (
        Grant("cloudfront", "CreateDistribution GetDistribution GetDistributionConfig "
              "UpdateDistribution DeleteDistribution TagResource UntagResource "
              "ListTagsForResource"),
    ),
    "AWS::CloudWatch::Alarm": (
        Grant("cloudwatch", "PutMetricAlarm DeleteAlarms TagResource UntagResource "
              "ListTagsForResource", (f"{_HERE}alarm:STACK-*",)),
        Grant("cloudwatch", "DescribeAlarms"),
    ),
    "AWS::CloudWatch::Dashboard": (
        Grant("cloudwatch", "PutDashboard GetDashboard DeleteDashboards",
              ("::ACCOUNT:dashboard/STACK*",)),
    ),
    "AWS::DynamoDB::Table": (
        Grant("dynamodb", "CreateTable DescribeTable UpdateTable DeleteTable "
              "DescribeContinuousBackups UpdateContinuousBackups DescribeTimeToLive "
              "UpdateTimeToLive DescribeContributorInsights DescribeKinesisStreamingDestination "
              "GetResourcePolicy TagResource UntagResource ListTagsOfResource",
              (f"{_HERE}table/STACK-*",)),
    ),
    "AWS::Events::Rule": (
        Grant("events", "PutRule DescribeRule DeleteRule EnableRule DisableRule PutTargets "
              "RemoveTargets ListTargetsByRule TagResource UntagResource ListTagsForResource",
              (f"{_HERE}rule/STACK-*", f"{_HERE}rule/*/STACK-*")),
    ),
    "AWS::Glue::Connection": (
        Grant("glue", "CreateConnection GetConnection UpdateConnection DeleteConnection",
              _CATALOGUE),
        Grant("ec2", "DescribeSubnets DescribeSecurityGroups DescribeVpcs"),
    ),
    "AWS::Glue::Job": (
        Grant("glue", "CreateJob GetJob UpdateJob DeleteJob TagResource UntagResource GetTags",
              (f"{_HERE}job/*",)),
    ),
    "AWS::IAM::Policy": (_ROLE_POLICIES,),
    "AWS::IAM::Role": (
        _ROLE_POLICIES,
        Grant("iam", "CreateRole GetRole UpdateRole UpdateRoleDescription DeleteRole "
              "UpdateAssumeRolePolicy ListRolePolicies AttachRolePolicy DetachRolePolicy "
              "ListAttachedRolePolicies TagRole UntagRole ListRoleTags", _ROLES),
    ),
    "AWS::KMS::Key": (
        Grant("kms", "CreateKey"),
        Grant("kms", "DescribeKey EnableKeyRotation DisableKeyRotation GetKeyRotationStatus "
              "GetKeyPolicy PutKeyPolicy UpdateKeyDescription ScheduleKeyDeletion TagResource "
              "UntagResource ListResourceTags", (f"{_HERE}key/*",)),
    ),
    "AWS::LakeFormation::PrincipalPermissions": (
        Grant("lakeformation", "GrantPermissions RevokePermissions ListPermissions"),
    ),
    "AWS::Lambda::Alias": (
        Grant("lambda", "CreateAlias GetAlias UpdateAlias DeleteAlias", _FUNCTIONS),
    ),
    "AWS::Lambda::EventInvokeConfig": (
        Grant("lambda", "PutFunctionEventInvokeConfig GetFunctionEventInvokeConfig "
              "UpdateFunctionEventInvokeConfig DeleteFunctionEventInvokeConfig", _FUNCTIONS),
    ),
    "AWS::Lambda::EventSourceMapping": (
        Grant("lambda", "CreateEventSourceMapping GetEventSourceMapping "
              "UpdateEventSourceMapping DeleteEventSourceMapping"),
    ),
    "AWS::Lambda::Function": (
        Grant("lambda", "CreateFunction GetFunction GetFunctionConfiguration UpdateFunctionCode "
              "UpdateFunctionConfiguration DeleteFunction PutFunctionConcurrency "
              "DeleteFunctionConcurrency GetFunctionCodeSigningConfig GetRuntimeManagementConfig "
              "PutRuntimeManagementConfig GetFunctionRecursionConfig PutFunctionRecursionConfig "
              "TagResource UntagResource ListTags", _FUNCTIONS),
        Grant("lambda", "GetLayerVersion", (f"{_HERE}layer:*",)),
        Grant("ec2", "DescribeSubnets DescribeSecurityGroups DescribeVpcs"),
    ),
    "AWS::Lambda::LayerVersion": (
        Grant("lambda", "PublishLayerVersion GetLayerVersion DeleteLayerVersion",
              (f"{_HERE}layer:*",)),
    ),
    "AWS::Lambda::Permission": (
        Grant("lambda", "AddPermission GetPolicy RemovePermission", _FUNCTIONS),
    ),
    "AWS::Lambda::Version": (
        Grant("lambda", "PublishVersion ListVersionsByFunction DeleteFunction", _FUNCTIONS),
    ),
    "AWS::Logs::LogGroup": (
        Grant("logs", "CreateLogGroup DeleteLogGroup PutRetentionPolicy DeleteRetentionPolicy "
              "TagResource UntagResource ListTagsForResource", _LOG_GROUPS),
        Grant("logs", "DescribeLogGroups"),
    ),
    "AWS::Logs::MetricFilter": (
        Grant("logs", "PutMetricFilter DescribeMetricFilters DeleteMetricFilter", _LOG_GROUPS),
    ),
    "AWS::Logs::QueryDefinition": (
        Grant("logs", "PutQueryDefinition DescribeQueryDefinitions DeleteQueryDefinition"),
    ),
    "AWS::Route53::RecordSet": (
        Grant("route53", "ChangeResourceRecordSets ListResourceRecordSets GetHostedZone",
              (":::hostedzone/*",)),
        Grant("route53", "GetChange", (":::change/*",)),
    ),
    "AWS::S3::Bucket": (
        Grant("s3", "CreateBucket DeleteBucket ListBucket GetBucketVersioning "
              "PutBucketVersioning GetEncryptionConfiguration PutEncryptionConfiguration "
              "GetBucketPublicAccessBlock PutBucketPublicAccessBlock "
              "GetBucketOwnershipControls PutBucketOwnershipControls GetBucketCORS "
              "PutBucketCORS GetLifecycleConfiguration PutLifecycleConfiguration "
              "GetBucketTagging PutBucketTagging", (":::BUCKETS-*",)),
    ),
    "AWS::S3::BucketPolicy": (
        Grant("s3", "PutBucketPolicy GetBucketPolicy DeleteBucketPolicy", (":::BUCKETS-*",)),
    ),
    "AWS::SNS::Subscription": (
        Grant("sns", "Subscribe ListSubscriptionsByTopic", (f"{_HERE}STACK-*",)),
        Grant("sns", "GetSubscriptionAttributes SetSubscriptionAttributes Unsubscribe"),
    ),
    "AWS::SNS::Topic": (
        Grant("sns", "CreateTopic GetTopicAttributes SetTopicAttributes DeleteTopic "
              "GetDataProtectionPolicy ListSubscriptionsByTopic TagResource UntagResource "
              "ListTagsForResource", (f"{_HERE}STACK-*",)),
    ),
    "AWS::SNS::TopicPolicy": (
        Grant("sns", "GetTopicAttributes SetTopicAttributes", (f"{_HERE}STACK-*",)),
    ),
    "AWS::SQS::Queue": (
        Grant("sqs", "CreateQueue GetQueueAttributes GetQueueUrl SetQueueAttributes DeleteQueue "
              "TagQueue UntagQueue ListQueueTags", (f"{_HERE}STACK-*",)),
    ),
    "AWS::SQS::QueuePolicy": (
        Grant("sqs", "GetQueueAttributes GetQueueUrl SetQueueAttributes", (f"{_HERE}STACK-*",)),
    ),
    "AWS::SSM::Parameter": (
        Grant("ssm", "PutParameter GetParameters DeleteParameter AddTagsToResource "
              "RemoveTagsFromResource ListTagsForResource", (f"{_HERE}parameter/CFN-*",)),
        Grant("ssm", "DescribeParameters"),
    ),
    "AWS::Scheduler::Schedule": (
        Grant("scheduler", "CreateSchedule GetSchedule UpdateSchedule DeleteSchedule",
              (f"{_HERE}schedule/*",)),
    ),
    "AWS::Scheduler::ScheduleGroup": (
        Grant("scheduler", "CreateScheduleGroup GetScheduleGroup DeleteScheduleGroup "
              "TagResource UntagResource ListTagsForResource", (f"{_HERE}schedule-group/*",)),
    ),
    "AWS::SecretsManager::Secret": (
        Grant("secretsmanager", "CreateSecret DescribeSecret UpdateSecret DeleteSecret "
              "TagResource UntagResource", (f"{_HERE}secret:*",)),
        Grant("secretsmanager", "GetRandomPassword"),
    ),
    "AWS::StepFunctions::StateMachine": (
        Grant("states", "CreateStateMachine DescribeStateMachine UpdateStateMachine "
              "DeleteStateMachine TagResource UntagResource ListTagsForResource",
              (f"{_HERE}stateMachine:*",)),
        _DELIVERS_LOGS,
    ),
    "AWS::WAFv2::WebACL": (
        Grant("wafv2", "CreateWebACL GetWebACL UpdateWebACL DeleteWebACL TagResource "
              "UntagResource ListTagsForResource"),
    ),
    # CloudFormation calls the function behind it as whoever deploys.
    "Custom::JobPackages": (Grant("lambda", "InvokeFunction", (f"{_HERE}function:STACK-*",)),),
}  # fmt: skip
"""What CloudFormation asks to make, read, change and delete a resource of each type."""

PASSED: Final[Mapping[str, str]] = {
    "AWS::ApiGateway::Account": "apigateway.amazonaws.com",
    "AWS::Glue::Job": "glue.amazonaws.com",
    "AWS::Lambda::Function": "lambda.amazonaws.com",
    "AWS::Scheduler::Schedule": "scheduler.amazonaws.com",
    "AWS::StepFunctions::StateMachine": "states.amazonaws.com",
}
"""To which service a resource of a type is passed a role of the stack."""

_SAM_BUCKETS: Final = (":::aws-sam-cli-managed-default-*", ":::ARTEFACTS", ":::ARTEFACTS/*")
DEPLOYING: Final = (
    Grant("cloudformation", "CreateChangeSet DescribeChangeSet ExecuteChangeSet DeleteChangeSet "
          "DescribeStacks DescribeStackEvents DescribeStackResources ListStackResources "
          "GetTemplate GetTemplateSummary DeleteStack",
          (f"{_HERE}stack/STACK/*", f"{_HERE}stack/aws-sam-cli-managed-default/*")),
    Grant("cloudformation", "CreateChangeSet", (":REGION:aws:transform/*",)),
    Grant("cloudformation", "GetTemplateSummary ValidateTemplate"),
    Grant("s3", "CreateBucket ListBucket GetBucketLocation GetObject PutObject "
          "PutBucketVersioning PutEncryptionConfiguration PutBucketPublicAccessBlock "
          "PutBucketPolicy PutBucketTagging", _SAM_BUCKETS),
)  # fmt: skip
"""What `sam deploy --resolve-s3` asks for itself."""


def statements(types: Iterable[str] = tuple(GRANTS)) -> list[dict[str, Any]]:
    """Return the statements that allow to deploy resources of some types.

    ``PARTITION``, ``REGION``, ``ACCOUNT``, ``STACK``, ``BUCKETS`` (the stack's name in small
    letters) and ``ARTEFACTS`` stand for what they say.
    """
    wanted = set(types)
    gathered: dict[tuple[str, ...], set[str]] = {}
    for grant in (*DEPLOYING, *(each for one in sorted(wanted) for each in GRANTS[one])):
        resources = tuple(_arn(grant.service, each) for each in grant.resources)
        gathered.setdefault(resources, set()).update(grant.named())
    passed = sorted({service for one, service in PASSED.items() if one in wanted})
    return [
        *(_allow(sorted(actions), resources) for resources, actions in gathered.items()),
        {
            **_allow(["iam:PassRole"], [_arn("iam", each) for each in _ROLES]),
            "Condition": {"StringEquals": {"iam:PassedToService": passed}},
        },
    ]


def policies() -> list[dict[str, Any]]:
    """Return the statements as documents, each small enough for a managed policy."""
    documents: list[list[dict[str, Any]]] = [[]]
    for statement in statements():
        if characters([*documents[-1], statement]) > POLICY_CHARACTERS_MAX:
            documents.append([])
        documents[-1].append(statement)
    return [{"Version": "2012-10-17", "Statement": each} for each in documents]


def characters(statement: list[dict[str, Any]]) -> int:
    """Return the size of a document as IAM counts it, with the longest names filled in."""
    document = {"Version": "2012-10-17", "Statement": statement}
    return len(filled(json.dumps(document, separators=(",", ":")), _LONGEST))


def filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def _arn(service: str, resource: str) -> str:
    return resource if resource == "*" else f"arn:PARTITION:{service}{resource}"


def _allow(actions: list[str], resources: Iterable[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": list(resources)}


# --- the policy of a key --------------------------------------------------------------------------


_EXACT: Final = frozenset({"StringEquals", "ArnEquals"})
_LIKE: Final = frozenset({"StringLike", "ArnLike"})


class Asker(NamedTuple):
    """A principal of the key's account that uses it through S3."""

    arn: str
    """Of a role or user."""
    region: str

    @property
    def account(self) -> str:
        return self.arn.split(":")[4]

    @property
    def root(self) -> str:
        return ":".join([*self.arn.split(":")[:5], "root"])

    def context(self) -> Mapping[str, str]:
        return {
            "kms:calleraccount": self.account,
            "kms:viaservice": f"s3.{self.region}.amazonaws.com",
            "aws:principalaccount": self.account,
            "aws:principalarn": self.arn,
        }


class Admission(NamedTuple):
    """What a key's policy says of one use."""

    itself: bool | None
    """Whether it admits the principal; None if a condition decides that is not known here."""
    by_iam: bool | None
    """Whether it leaves it to the principal's own policies; None as above."""


def admission(policy: Mapping[str, Any], action: str, asker: Asker) -> Admission:
    """Return what a key's policy says of an action, such as ``kms:Decrypt``."""
    denied: list[bool | None] = [False]
    itself: list[bool | None] = [False]
    by_iam: list[bool | None] = [False]
    for statement in _listed(policy.get("Statement", [])):
        if not any(fnmatchcase(action, one) for one in _listed(statement.get("Action", []))):
            continue
        named = _principals(statement)
        met = _met(statement.get("Condition", {}), asker)
        if "*" in named or asker.arn in named:
            (itself if statement["Effect"] == "Allow" else denied).append(met)
        elif {asker.root, asker.account} & named:
            (by_iam if statement["Effect"] == "Allow" else denied).append(met)
    if True in denied:
        return Admission(itself=False, by_iam=False)
    is_sure = None not in denied
    return Admission(_any(itself, is_sure=is_sure), _any(by_iam, is_sure=is_sure))


def _any(some: Collection[bool | None], *, is_sure: bool) -> bool | None:
    """Return whether one holds; None if that depends on what is not known."""
    if True in some and is_sure:
        return True
    return None if True in some or None in some else False


def _principals(statement: Mapping[str, Any]) -> set[str]:
    named = statement.get("Principal", {})
    return set(_listed(named if isinstance(named, str) else named.get("AWS", [])))


def _met(condition: Mapping[str, Mapping[str, Any]], asker: Asker) -> bool | None:
    """Return whether every condition is met; None if no known one fails, and one is not known."""
    known, results = asker.context(), list[bool | None]()
    for operator, keys in condition.items():
        name = operator.removesuffix("IfExists").rpartition(":")[2]
        for key, wanted in keys.items():
            value = known.get(key.lower())
            if value is None or name not in _EXACT | _LIKE:
                results.append(None)
            elif name in _EXACT:
                results.append(value in _listed(wanted))
            else:
                results.append(any(fnmatchcase(value, one) for one in _listed(wanted)))
    if False in results:
        return False
    return None if None in results else True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
