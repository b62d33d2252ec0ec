"""Checks that a deployment is complete and answers: stack, functions, quotas, alarms, address.

The stack has the outputs that this release needs; functions are active, of one release, with the
layers of the same deployment; the account's quotas suffice for the stack's parameters; all alarms
exist, none is active, and somebody is notified; from outside, the address answers, requires a
token, and the clocks agree.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lakesync.analysis.connection import paged
from lakesync.cli.doctor import excused, note, unchecked, well, wrong
from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.core.wording import plural
from lakesync.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import httpx

    from lakesync.cli.doctor import Deployed, Diagnosis

# --- stack ----------------------------------------------------------------------------------------


OUTPUTS: Final = (
    "AlarmTopicArn",
    "AnnounceDlqUrl",
    "AnnounceQueueUrl",
    "BufferTable",
    "DatabasePrefix",
    "FlushDlqUrl",
    "FlushQueueUrl",
    "GlueJobName",
    "HttpUrl",
    "LakeBucket",
    "RetainFunction",
)
"""The outputs that the command line reads."""

_AFTER_ROLLBACK: Final = {
    "ROLLBACK_COMPLETE": "it was the first one, and such a stack takes no other: read its events "
    "for the first failure, mend it, `lakesync stack delete NAME --yes NAME`, and deploy again",
    "ROLLBACK_FAILED": "it was the first one, and such a stack takes no other: read its events for "
    "the first failure, mend it, `lakesync stack delete NAME --yes NAME`, and deploy again",
    "UPDATE_ROLLBACK_FAILED": "read the stack's events for what could not be put back, mend it, "
    "and run `aws cloudformation continue-update-rollback --stack-name NAME`; then deploy again",
}
"""What to do about a stack that was rolled back in the middle."""


def check_stack(deployed: Deployed) -> list[Diagnosis]:
    """Check how the last deployment ended, and which outputs exist."""
    return stack_state(deployed.stack["StackStatus"], deployed.aws.outputs)


def stack_state(status: str, outputs: Collection[str]) -> list[Diagnosis]:
    return [_status(status), _outputs(sorted(set(OUTPUTS) - set(outputs)))]


def _status(status: str) -> Diagnosis:
    if status.endswith("_IN_PROGRESS"):
        return wrong(f"a deployment is under way: {status}", "wait for its end, and look again")
    if status in _AFTER_ROLLBACK:
        return wrong(f"the last deployment failed: {status}", _AFTER_ROLLBACK[status])
    if "ROLLBACK" in status or not status.endswith("_COMPLETE"):
        return wrong(
            f"the last deployment failed: {status}",
            "read the stack's events for the first failure, mend it, and deploy again",
        )
    return well(f"deployed: {status}")


def _outputs(missing: list[str]) -> Diagnosis:
    if missing:
        return wrong(
            f"the stack has no output {', '.join(missing)}",
            "deploy the release that this command line is of",
        )
    return well("every output is there")


# --- functions ------------------------------------------------------------------------------------


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
    every = list(functions)
    faults = [
        fault
        for function in every
        for fault in (*_work(function), *_aliases(function), *_runtime(function, today))
    ]
    faults += _layers(every, frozenset(layers))
    return faults or [well(f"{len(every)} functions are active, of one release")]


def _work(function: Function) -> Iterator[Diagnosis]:
    config, name = function.config, function.name
    if function.reserved == 0:
        yield wrong(
            f"{name} is stopped: its reserved concurrency is 0",
            f"aws lambda delete-function-concurrency --function-name {config['FunctionName']}",
        )
        return
    state, update = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if state in {"Active", "Inactive"} and update == "Successful":
        return
    reason = config.get("StateReason") or config.get("LastUpdateStatusReason") or "no reason given"
    yield wrong(f"{name} is {state}, its update {update}: {reason}", _DEPLOY)


def _aliases(function: Function) -> Iterator[Diagnosis]:
    """Check that each alias points to one version only, that of the last deployment."""
    for alias in function.aliases:
        name = f"{function.name}:{alias['Name']}"
        if (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights"):
            yield wrong(
                f"{name} shares its traffic between two versions",
                "a gradual deployment is under way: wait for its end, or roll it back",
            )
        elif other := _differences(alias["config"], function.config):
            yield wrong(
                f"{name} runs version {alias['FunctionVersion']}, not what was deployed last: "
                f"other {', '.join(other)}",
                f"if it was put back, read why (docs/upgrade.md), mend that, and {_DEPLOY}",
            )


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


def _runtime(function: Function, today: date) -> Iterator[Diagnosis]:
    runtime = function.config.get("Runtime", "")
    ends = RUNTIME_ENDS.get(runtime)
    if ends is None:
        yield wrong(f"{function.name} runs on {runtime}", f"set PythonRuntime; {_DEPLOY}")
    elif (ends - today).days <= _WARNED_DAYS:
        yield wrong(
            f"{function.name} runs on {runtime}, which AWS mends until {ends}",
            f"set PythonRuntime to a later one; {_DEPLOY}",
        )


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


# --- quotas ---------------------------------------------------------------------------------------


_REQUEST_S: Final = 0.25
"""How long a request keeps a function busy, with cold starts: an upper estimate."""
_BACKGROUND: Final = 32
"""Concurrent executions of functions that clients do not call: flush, the lake's starter,
retention."""
_PUSH_WRITE_UNITS: Final = 5
"""Write units of a push of one edit, rounded up (docs/architecture.md § Cost)."""
_GLUE_RUNS: Final = 5
"""Concurrent runs of the two Glue jobs."""
RATES: Final = (500, 2_000, 100)
"""The template's default of RequestRates: pushes, pulls and other requests in a second."""
RESERVED: Final = 4
"""How many numbers of Concurrency are what the stack has reserved for its own functions."""
NO_QUOTAS: Final = "the stage local has no account of AWS, and none of its quotas"
_RAISE: Final = "ask for more in Service Quotas, or lower RequestRates"


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota and the need that it must cover; None where AWS did not answer."""

    name: str
    value: float | None
    need: float


def check_quotas(deployed: Deployed) -> list[Diagnosis]:
    """Check the limits of the account that Lambda and DynamoDB report."""
    account = deployed.client("lambda").get_account_settings()["AccountLimit"]
    reserved = sum(deployed.part("Concurrency", place, 0) for place in range(RESERVED))
    table = deployed.client("dynamodb").describe_limits()
    needed = _needs(deployed)
    quotas = [
        Quota("Lambda: concurrent executions", account["UnreservedConcurrentExecutions"] + reserved,
              needed["lambda"]),
        Quota("DynamoDB: write units of a table", table["TableMaxWriteCapacityUnits"],
              needed["dynamodb"]),
    ]  # fmt: skip
    diagnoses = quotas_state(quotas)
    return excused(diagnoses, NO_QUOTAS) if deployed.is_local else diagnoses


def check_service_quotas(deployed: Deployed) -> list[Diagnosis]:
    if deployed.is_local:
        return [note(f"not asked: {NO_QUOTAS}")]
    needed = _needs(deployed)
    return quotas_state(service_quotas(deployed.client("service-quotas"), needed))


def service_quotas(client: Any, needed: Mapping[str, float]) -> list[Quota]:
    """Return the quotas that only Service Quotas knows, with what is needed of each."""
    return [
        Quota(f"{service}: {name}", _value(client, service, name), needed[service])
        for service, name in (
            ("apigateway", "Throttle rate"),
            ("glue", "Max concurrent job runs per account"),
        )
    ]


def _needs(deployed: Deployed) -> dict[str, float]:
    pushes_per_s, *others = (
        deployed.part("RequestRates", place, default) for place, default in enumerate(RATES)
    )
    return needs(pushes_per_s, sum(others))


def needs(pushes_per_s: int, others_per_s: int) -> dict[str, float]:
    """Return what a stack needs of each service at its own limits."""
    return {
        "lambda": (pushes_per_s + others_per_s) * _REQUEST_S + _BACKGROUND,
        "dynamodb": pushes_per_s * _PUSH_WRITE_UNITS,
        "apigateway": pushes_per_s + others_per_s,
        "glue": _GLUE_RUNS,
    }


def quotas_state(quotas: Iterable[Quota]) -> list[Diagnosis]:
    return [quota_state(quota) for quota in quotas]


def quota_state(quota: Quota) -> Diagnosis:
    if quota.value is None:
        return unchecked(
            f"{quota.name}: AWS gives no value", "look it up in Service Quotas, in the console"
        )
    sentence = f"{quota.name}: {quota.value:,.0f}, and {quota.need:,.0f} may be needed"
    return well(sentence) if quota.value >= quota.need else wrong(sentence, _RAISE)


def _value(client: Any, service: str, name: str) -> float | None:
    """Return a quota by its name: the account's value, else AWS's default."""
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for quota in paged(client, operation, "Quotas", ServiceCode=service):
            if quota["QuotaName"].lower() == name.lower():
                return float(quota["Value"])
    return None


# --- alarms ---------------------------------------------------------------------------------------


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
    client = deployed.client("cloudwatch")
    alarms = [
        alarm
        for first in range(0, len(wanted), _NAMES_MAX)
        for alarm in paged(client, "describe_alarms", "MetricAlarms",
                          AlarmNames=wanted[first : first + _NAMES_MAX])
    ]  # fmt: skip
    targets = sorted({arn for alarm in alarms for arn in alarm.get("AlarmActions", [])})
    topics = [_topic(deployed.client("sns"), arn) for arn in targets if ":sns:" in arn]
    heard = listeners(topics)
    if deployed.is_local:
        heard = excused(heard, "on the stage local nobody needs to hear of alarms")
    return [*alarms_state(wanted, alarms), *heard]


def _topic(client: Any, arn: str) -> Topic:
    subscriptions = paged(client, "list_subscriptions_by_topic", "Subscriptions", TopicArn=arn)
    arns = [item["SubscriptionArn"] for item in subscriptions]
    pending = sum(one == _PENDING for one in arns)
    attributes = client.get_topic_attributes(TopicArn=arn)["Attributes"]
    return Topic(arn, len(arns) - pending, pending, attributes.get("KmsMasterKeyId", ""))


def alarms_state(wanted: Iterable[str], alarms: Iterable[Mapping[str, Any]]) -> list[Diagnosis]:
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


# --- address --------------------------------------------------------------------------------------


_TIMEOUT_S: Final = 30.0
_CLOSED: Final = "/sync/doctor/pull"
"""A route that requires a token; the request concerns no gateway."""
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_DATE_STEP_S: Final = 1.0
"""``Date`` has whole seconds, which limits the precision of a difference."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The date of an answer, and the times of the request and the answer by our clock."""

    date: str
    asked_s: float
    answered_s: float


def check_gateway(deployed: Deployed) -> list[Diagnosis]:
    """Check that the address answers, and refuses requests without a token."""
    health = _get(deployed.url + "/health")
    return reached(deployed.url, health.status_code, _get(deployed.url + _CLOSED).status_code)


def reached(url: str, health: int, closed: int) -> list[Diagnosis]:
    open_route = (
        well(f"{url} answers")
        if health == HTTPStatus.OK
        else wrong(
            f"{url}/health answers {health}",
            "429 is throttling: raise RequestRates or the account's quota; else read the log "
            "of OpenFunction, and whether functions were stopped (concurrency 0)",
        )
    )
    closed_route = (
        well("without a token nothing is served")
        if closed in _REFUSED
        else wrong(
            f"without a token {_CLOSED} answers {closed}, not 401",
            "deploy the release again: the routes' authorizer is missing or fails; see the log of "
            "AuthoriseFunction",
        )
    )
    return [open_route, closed_route]


def check_clock(deployed: Deployed) -> Diagnosis:
    """Check that this machine and the gateway agree on the time."""
    asked_s = time.time()
    answer = _get(deployed.url + "/health")
    return clock(Heard(answer.headers.get("date", ""), asked_s, time.time()))


def clock(heard: Heard) -> Diagnosis:
    try:
        date_s = parsedate_to_datetime(heard.date).timestamp()
    except ValueError:
        return unchecked("the gateway's answer carries no date", "ask it without a proxy between")
    # Written at some moment of [date, date + 1 s) theirs and [asked, answered] ours.
    ahead_s = heard.asked_s - (date_s + _DATE_STEP_S)
    behind_s = date_s - heard.answered_s
    off_s = max(ahead_s, behind_s, 0.0)
    if off_s * 1000 > DRIFT_MS_MAX:
        side = "ahead of" if ahead_s > behind_s else "behind"
        return wrong(
            f"this machine's clock is {off_s:.0f} s {side} the gateway's",
            "set it by NTP: stamps more than 5 s ahead are refused with CLOCK_DRIFT, and tokens "
            "signed here may not be valid yet, or no more",
        )
    return well(f"this machine's clock and the gateway's differ by at most {off_s + 1:.0f} s")


def _get(url: str) -> httpx.Response:
    import httpx

    from lakesync.client.gateway_http import trusted

    try:
        return httpx.get(url, timeout=_TIMEOUT_S, verify=trusted())
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise Unreachable(f"{url} did not answer: {str(exc) or type(exc).__name__}") from exc
