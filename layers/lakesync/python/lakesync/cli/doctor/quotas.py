"""Compares the account's quotas with the stack's needs by its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.doctor.diagnosis import excused, note, unchecked, well, wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

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
    """Check the quotas that only Service Quotas knows."""
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
    """Decide by each quota and its need."""
    return [_state(quota) for quota in quotas]


def _state(quota: Quota) -> Diagnosis:
    if quota.value is None:
        return unchecked(
            f"{quota.name}: AWS gives no value", "look it up in Service Quotas, in the console"
        )
    sentence = f"{quota.name}: {quota.value:,.0f}, and {quota.need:,.0f} may be needed"
    return well(sentence) if quota.value >= quota.need else wrong(sentence, _RAISE)


def _value(client: Any, service: str, name: str) -> float | None:
    """Return a quota by its name: the account's value, else AWS's default."""
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode=service):
            for quota in page["Quotas"]:
                if quota["QuotaName"].lower() == name.lower():
                    return float(quota["Value"])
    return None
