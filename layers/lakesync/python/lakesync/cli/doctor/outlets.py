"""Checks declared destinations, connectors and polled flows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import duration, unchecked, well, wrong
from lakesync.core.claims import DELIVERIES, DELIVERIES_FAILED, claimed_last, delivery_place
from lakesync.core.clock import stamp_ms
from lakesync.core.plural import plural
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis
    from lakesync.ports import StoredConnector

_CLAIMS_MAX: Final = 5_000
"""Claims that are read: five listings."""
_GATEWAYS_MAX: Final = 500
"""Gateways whose connectors are read, for one or two read units; it is reported if there are
more."""
_DESTINATION_ALARM_S: Final = 7_200
_INTERVALS: Final = 3
"""The number of intervals that may pass without a completed poll: a poll may take long."""
_LATE_S: Final = 900


@dataclass(frozen=True, slots=True)
class Outlet:
    """A destination for which claims wait."""

    name: str
    """With its gateway: ``acme/warehouse``."""
    claims: int
    oldest_s: float
    paused: bool
    set_aside: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A connector, or a flow that is polled."""

    name: str
    """With its gateway."""
    paused: bool
    late_s: float = 0.0
    """How long a completed poll is overdue; 0 if it is not."""
    fault: str = ""
    dead_letters: int = 0


def check_destinations(deployed: Deployed) -> list[Diagnosis]:
    """Check how long claims have waited for each destination, and which were set aside."""
    keys = _keys(deployed, DELIVERIES)
    failed = _keys(deployed, DELIVERIES_FAILED)
    allowed_s = deployed.part("AlarmBounds", 2, _DESTINATION_ALARM_S)
    more = _CLAIMS_MAX in {len(keys), len(failed)}
    return destinations_state(list(_outlets(deployed, keys, failed)), allowed_s, more=more)


def _keys(deployed: Deployed, prefix: str) -> list[str]:
    listing = deployed.client("s3").get_paginator("list_objects_v2")
    pages = listing.paginate(Bucket=deployed.aws.output("LakeBucket"), Prefix=prefix)
    return list(islice((one["Key"] for p in pages for one in p.get("Contents", [])), _CLAIMS_MAX))


def _outlets(deployed: Deployed, keys: Sequence[str], failed: Sequence[str]) -> Iterator[Outlet]:
    waiting, set_aside = _by_destination(keys), _by_destination(failed)
    buffer = deployed.aws.buffer(deployed.aws.output("BufferTable"))
    for pair in sorted(waiting.keys() | set_aside.keys()):
        gateway, name = pair
        lasts = waiting.get(pair, [])
        declared = buffer.destinations(gateway).by_name.get(name)
        paused = declared is not None and declared.paused
        dated = [last for last in lasts if last]
        oldest_s = deployed.now_s - stamp_ms(min(dated)) / 1000 if dated else 0.0
        count = len(set_aside.get(pair, []))
        yield Outlet(f"{gateway}/{name}", len(lasts), max(oldest_s, 0.0), paused, count)


def _by_destination(keys: Iterable[str]) -> dict[tuple[str, str], list[int]]:
    """Return the last commit of each claim, by gateway and destination; 0 if it names none."""
    lasts: dict[tuple[str, str], list[int]] = {}
    for key in keys:
        with suppress(ValidationFailed):  # not one of ours
            place = delivery_place(DELIVERIES + key.partition("/")[2])
            lasts.setdefault(place[:2], []).append(claimed_last(key))
    return lasts


def destinations_state(
    outlets: Sequence[Outlet], allowed_s: float, *, more: bool = False
) -> list[Diagnosis]:
    """Decide by what waits for each destination, and whether there are more claims."""
    diagnoses = [each for outlet in outlets for each in _outlet_state(outlet, allowed_s)]
    if more:
        what = f"more than {_CLAIMS_MAX:,} claims of destinations: not all looked at"
        diagnoses.append(unchecked(what, "the alarm DeliveriesLate watches all of them"))
    waited = plural(len(outlets), "one")
    return diagnoses or [well(f"nothing late for destinations: {waited} waited")]


def _outlet_state(outlet: Outlet, allowed_s: float) -> Iterator[Diagnosis]:
    waits = f"{outlet.name}: {plural(outlet.claims, 'claim')} waiting"
    if outlet.set_aside:
        yield wrong(
            f"{outlet.name}: {plural(outlet.set_aside, 'claim')} could not succeed, and were set "
            "aside",
            "lakesync destinations list says why; mend it, then lakesync destinations replay",
        )
    if outlet.paused:
        yield well(f"{waits}, as it is paused")
    elif outlet.oldest_s > allowed_s:
        yield wrong(
            f"{waits}, one for {duration(outlet.oldest_s)}",
            "lakesync destinations list says why; mend it, or pause it",
        )


def check_connectors(deployed: Deployed) -> list[Diagnosis]:
    """Check that each connector and polled flow is polled, without a fault or a refused row."""
    from lakesync.buffer.connectors import DynamoConnectors

    table = deployed.aws.output("BufferTable")
    gateways = sorted(deployed.aws.buffer(table).gateways())
    store = DynamoConnectors(table, deployed.aws.dynamo())
    sources = [
        source_of(gateway, stored, deployed.now_s)
        for gateway in gateways[:_GATEWAYS_MAX]
        for stored in store.connectors(gateway)
    ]
    return connectors_state(sources, more=len(gateways) > _GATEWAYS_MAX)


def source_of(gateway: str, stored: StoredConnector, now_s: float) -> Source:
    """Return a connector's status, by its stored state."""
    from lakesync.connectors.definition import definition_from
    from lakesync.connectors.state import state_from

    definition, state = definition_from(stored.definition), state_from(stored.state)
    due_s = _INTERVALS * definition.every_minutes * 60 + _LATE_S
    late_s = now_s - max(state.polled_ms, state.wait_until_ms) / 1000 - due_s
    is_late = late_s > 0 and bool(state.polled_ms or state.wait_until_ms)
    fault = f"{state.fault.code}: {state.fault.message}" if state.fault else ""
    return Source(
        f"{gateway}/{stored.name}",
        definition.paused,
        late_s + due_s if is_late else 0.0,
        fault,
        state.dead_letters,
    )


def connectors_state(sources: Sequence[Source], *, more: bool = False) -> list[Diagnosis]:
    """Decide by the status of each connector, and whether there are more gateways."""
    diagnoses = [each for source in sources for each in _source_state(source)]
    if more:
        what = f"more than {_GATEWAYS_MAX} gateways: not all looked at"
        diagnoses.append(unchecked(what, "lakesync connectors list --gateway NAME looks at one"))
    return diagnoses or [well(f"{plural(len(sources), 'connector')} polled without a fault")]


def _source_state(source: Source) -> Iterator[Diagnosis]:
    if source.dead_letters:
        yield wrong(
            f"{source.name}: {plural(source.dead_letters, 'row')} refused",
            "lakesync connectors show NAME says why, of the first; mend that, and they are taken",
        )
    if source.paused:
        yield well(f"{source.name} is paused")
    elif source.fault:
        yield wrong(
            f"{source.name} met a fault: {source.fault[:200]}",
            "lakesync connectors check NAME asks its source; mend that, or pause it",
        )
    elif source.late_s:
        yield wrong(
            f"{source.name} was not polled to its end for {duration(source.late_s)}",
            "read the log of IngestFunction, and the executions of PollConnector",
        )
