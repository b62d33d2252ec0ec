"""Checks from outside: the address answers, requires a token, and the clocks agree."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import unchecked, well, wrong
from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.errors import Unreachable

if TYPE_CHECKING:
    import httpx

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

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
    """Decide by the statuses of an open and of a closed route."""
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


def check_clock(deployed: Deployed) -> list[Diagnosis]:
    """Check that this machine and the gateway agree on the time."""
    asked_s = time.time()
    answer = _get(deployed.url + "/health")
    return [clock(Heard(answer.headers.get("date", ""), asked_s, time.time()))]


def clock(heard: Heard) -> Diagnosis:
    """Decide by the date of an answer, which was written between our two readings."""
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

    from lakesync.client.transport.certificates import trusted

    try:
        return httpx.get(url, timeout=_TIMEOUT_S, verify=trusted())
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise Unreachable(f"{url} did not answer: {str(exc) or type(exc).__name__}") from exc
