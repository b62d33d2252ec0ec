"""Delivery to declared databases: the handler of ``functions/deliver``, and what opens databases.

Messages say where claims may wait. Once a day the handler announces the tables whose history may be
old enough for an archive.

A message that could not be completed is returned to the queue individually: at once if only time
ran out; later, once enough has gathered, if its destination prefers large batches; with backoff if
the destination is down. Other messages of a destination that is down are not tried in the same
batch, so that they delay no others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.core.clock import doubled
from lakesync.core.deliveries import delivery_place
from lakesync.core.destinations import BUCKET
from lakesync.errors import (
    AdapterRefused,
    AdapterUnreachable,
    Contention,
    LakeSyncError,
    ValidationFailed,
)
from lakesync.runtime import observe, wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.adapters.connect import Connection
    from lakesync.adapters.database import DatabaseAdapter, DestinationDatabase
    from lakesync.adapters.history_archive import HistoryArchive
    from lakesync.core.deliveries import DeliveryPlace
    from lakesync.core.destinations import Destination
    from lakesync.delivery.deliverer import Archiver, Delivered, Deliverer, Lag
    from lakesync.delivery.source_pull import SourcePulls
    from lakesync.delivery.table_context import TableContext
    from lakesync.delivery.table_delivery import TableDelivery
    from lakesync.gateway.destination_admin import AsksDatabase, DestinationAdmin
    from lakesync.runtime.observe import Handler, Seconds
    from lakesync.runtime.settings import AdminSettings, Aws, DeliverSettings, SourcePullSettings

    Delay = Callable[[str, int], None]

# --- the handler ----------------------------------------------------------------------------------


LAG: Final = "DestinationLag"
"""How long the oldest commit has waited for a destination that is not paused. Alarmed."""
LAGS_MAX: Final = 20
"""Destinations whose lag is a metric of its own, those furthest behind: each costs $0.30 a month
while it is one, and with many gateways most are behind for a moment."""
BACK_OFF_S_MAX: Final = 900
"""The longest that a message waits before a destination that is down is tried again."""
_BACK_OFF_S: Final = 15
_MARGIN_S: Final = 45
"""Left of a function's time when it begins no other step: one takes seconds."""


class Delivers(Protocol):
    """`lakesync.delivery.deliverer.Deliverer`."""

    def deliver(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        """Work on one place."""
        ...

    def sweep(self) -> list[Lag]:
        """Announce everything that waits."""
        ...


class Archives(Protocol):
    """`lakesync.delivery.deliverer.Archiver`."""

    def archive(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        """Move what is old of one table."""
        ...

    def announce(self) -> int:
        """Announce every table that may have some."""
        ...


def deliver_handler(
    deliverer: Delivers, archiver: Archives, delay: Delay, seconds: Seconds
) -> Handler:
    """Return the handler of ``functions/deliver``."""

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        if "archive" in event:
            return {"tables": archiver.announce()}
        if "Records" not in event:
            return {"waiting": _sweep(deliverer)}
        work = _Work(deliverer, archiver, lambda: seconds() < ends)
        failed = []
        for record in event["Records"]:
            again_s = work.again_in_s(record)
            if again_s is not None:
                failed.append({"itemIdentifier": record["messageId"]})
                _delay(delay, record, again_s)
        return {"batchItemFailures": failed}

    return handler


class _Task(NamedTuple):
    """What a message asks for."""

    place: DeliveryPlace
    archives: bool
    """Whether history is moved there; else claims are delivered."""


@dataclass
class _Work:
    """The work on one batch of messages."""

    deliverer: Delivers
    archiver: Archives
    has_time: Callable[[], bool]
    _down: set[tuple[str, str, bool]] = field(default_factory=set, init=False)
    _done: dict[_Task, int | None] = field(default_factory=dict, init=False)

    def again_in_s(self, record: Mapping[str, Any]) -> int | None:
        """Handle a message; gives in how many seconds it must return, None if never."""
        tries = int(record.get("attributes", {}).get("ApproximateReceiveCount", 1))
        back_off_s = doubled(_BACK_OFF_S, BACK_OFF_S_MAX, tries - 1)
        try:
            task = _task_of(record["body"])
        except ValidationFailed as error:
            observe.failure(error, task="deliver")
            return BACK_OFF_S_MAX
        if task not in self._done:
            self._done[task] = self._deliver(task, back_off_s)
        return self._done[task]

    def _deliver(self, task: _Task, back_off_s: int) -> int | None:
        place = task.place
        # An archive that is away delays no delivery.
        destination = (place.gateway, place.destination, task.archives)
        if destination in self._down:
            return back_off_s
        try:
            work = self.archiver.archive if task.archives else self.deliverer.deliver
            delivered = work(place, self.has_time)
        except Contention as error:
            return min(error.retry_after_s, BACK_OFF_S_MAX)
        except LakeSyncError as error:
            self._down.add(destination)
            where = {"gateway": place.gateway, "destination": place.destination}
            observe.logger.warning(
                "not delivered", extra={"code": error.code, "reason": error.message, "where": where}
            )
            observe.count("DeliveriesFailed")
            return back_off_s
        except Exception as error:  # noqa: BLE001 - one message's bug must not cost its neighbours
            observe.bug(error, place=place.prefix)
            return back_off_s
        observe.count("DeltasArchived" if task.archives else "DeltasDelivered", delivered.deltas)
        return None if delivered.finished else min(delivered.again_s, BACK_OFF_S_MAX)


def _task_of(body: str) -> _Task:
    try:
        said = json.loads(body)
        claim, archives = said["claim"], said.get("archive") is True
    except (ValueError, TypeError, KeyError, AttributeError):
        claim, archives = None, False
    if not isinstance(claim, str):
        raise ValidationFailed("a message names the claim that waits", field="claim")
    return _Task(delivery_place(claim), archives)


def _delay(delay: Delay, record: Mapping[str, Any], seconds: int) -> None:
    try:
        delay(record["receiptHandle"], seconds)
    except LakeSyncError as error:
        observe.failure(error, task="delay a message")  # it comes again when its queue says so


def _sweep(deliverer: Delivers) -> int:
    lags = deliverer.sweep()
    for lag in sorted(lags, key=lambda lag: -lag.oldest_ms)[:LAGS_MAX]:
        observe.destination_lag(lag.gateway, lag.destination, lag.oldest_ms / 1000, lag.claims)
    for lag in lags:
        if not lag.paused:
            observe.count(LAG, max(lag.oldest_ms, 1) / 1000, "Seconds")
    return sum(lag.claims for lag in lags)


# --- composition ----------------------------------------------------------------------------------


def deliverer(settings: DeliverSettings) -> Deliverer:
    """Return the service behind ``functions/deliver``."""
    from lakesync.delivery.deliverer import JobRuns  # noqa: PLC0415
    from lakesync.delivery.table_delivery import TableDelivery  # noqa: PLC0415

    def start() -> None:
        from lakesync.runtime.materialise import start_run  # noqa: PLC0415

        start_run(wiring.client(settings, "glue", attempts=2), settings.bigquery_job)

    large = JobRuns(settings.bigquery_job_deltas if settings.bigquery_job else 0, start)
    return delivers(settings, lambda context: TableDelivery(context, large))


def delivers(
    settings: DeliverSettings, table_delivery: Callable[[TableContext], TableDelivery]
) -> Deliverer:
    """Return the service that delivers batches; ``table_delivery`` delivers a table."""
    from lakesync.adapters.lake.parquet import read_batch  # noqa: PLC0415
    from lakesync.delivery.deliverer import Deliverer  # noqa: PLC0415

    return Deliverer(
        wiring.buffer(settings),
        wiring.objects(settings, settings.lake_bucket),
        LateQueue(settings, settings.deliver_queue_url),
        read_batch=read_batch,
        open_database=open_database(settings),
        wall_clock=wiring.wall_clock,
        table_delivery=table_delivery,
        open_archive=open_archive(settings),
    )


def archiver(settings: DeliverSettings) -> Archiver:
    """Return the service that moves old history of destinations into their archives."""
    from lakesync.delivery.deliverer import Archiver  # noqa: PLC0415

    return Archiver(
        wiring.buffer(settings),
        LateQueue(settings, settings.deliver_queue_url),
        open_database=open_database(settings),
        open_archive=open_archive(settings),
        wall_clock=wiring.wall_clock,
    )


def source_pulls(settings: SourcePullSettings) -> SourcePulls:
    """Return the services behind ``functions/pull_source``."""
    from lakesync.delivery.source_pull import SourcePulls  # noqa: PLC0415

    databases, archives = open_database(settings), open_archive(settings)

    def opened(gateway: str, source: Destination) -> DatabaseAdapter:
        database = databases(gateway, source)
        if source.archive is None:
            return database
        from lakesync.adapters.copying import Lifecycle  # noqa: PLC0415

        return Lifecycle(database, archives(gateway, source))

    return SourcePulls(wiring.buffer(settings), opened, wall_clock=wiring.wall_clock)


def open_database(
    settings: DeliverSettings | SourcePullSettings,
) -> Callable[[str, Destination], DestinationDatabase]:
    """Return a function that opens a destination's database by its secret, read each time.

    So a credential that was rotated is in force with the next message.
    """
    by_archive = {
        has_archive: database_opener(
            settings, settings.secret_prefix, settings.database_hosts, keeps_all=has_archive
        )
        for has_archive in (False, True)
    }
    return lambda gateway, destination: by_archive[destination.archive is not None](
        gateway, destination.secret, destination.kind, gateway
    )


def open_archive(
    settings: DeliverSettings | SourcePullSettings,
) -> Callable[[str, Destination], HistoryArchive]:
    """Return a function that opens the archive of a destination that has one, by its secret.

    Each declaration has a folder of its own: the remains of an earlier one of the same name have
    other rows.
    """
    client = cache(lambda: wiring.client(settings, "secretsmanager"))

    def opened(gateway: str, destination: Destination) -> HistoryArchive:
        from lakesync.adapters.connect import history_archive  # noqa: PLC0415

        assert destination.archive  # noqa: S101 - asked for those alone
        name = f"{settings.secret_prefix}{gateway}/{destination.archive.secret}"
        connection = _connection(client(), name, destination.archive.kind)
        keeper = f"{gateway}/{destination.name}/{destination.declared_ms}"
        return history_archive(connection.url, keeper, settings.database_hosts)

    return opened


def database_opener(
    settings: Aws, prefix: str, hosts: tuple[str, ...], *, keeps_all: bool = False
) -> Callable[[str, str, str, str], DestinationDatabase]:
    """Return a function that opens the database at a gateway's secret URL, for one keeper's tables.

    Args:
        settings: the function's.
        prefix: of the secrets' names.
        hosts: which hosts that are not public a database may be at.
        keeps_all: whether no history is forgotten with what comes: an archive takes it first.
    """
    client = cache(lambda: wiring.client(settings, "secretsmanager"))

    def opened(gateway: str, secret: str, kind: str, keeper: str) -> DestinationDatabase:
        from lakesync.adapters.connect import database_adapter  # noqa: PLC0415
        from lakesync.adapters.database import HISTORY_MS  # noqa: PLC0415

        connection = _connection(client(), f"{prefix}{gateway}/{secret}", kind)
        history_ms = None if keeps_all else HISTORY_MS
        return database_adapter(
            connection.url, keeper, connection.credentials, history_ms=history_ms, hosts=hosts
        )

    return opened


def _connection(client: Any, secret: str, kind: str) -> Connection:
    from lakesync.adapters.connect import read_connection  # noqa: PLC0415

    connection = read_connection(secret_text(client, secret))
    if connection.kind != kind:
        place = "a bucket's folder" if kind == BUCKET else f"a {kind} database"
        raise AdapterRefused(f"the secret {secret} holds no URL of {place}")
    return connection


def secret_text(client: Any, name: str) -> str:
    """Return the content of a secret; its text appears in no message.

    Raises:
        AdapterRefused: there is no such secret, or it may not be read.
        AdapterUnreachable: it could not be read now.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        text: str = client.get_secret_value(SecretId=name)["SecretString"]
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        if code in {"ResourceNotFoundException", "AccessDeniedException"}:
            raise AdapterRefused(
                f"the secret {name} cannot be read: make it, with the database's URL as its text"
            ) from exc
        raise AdapterUnreachable(f"the secret {name} cannot be read now: {code}") from exc
    except BotoCoreError as exc:
        raise AdapterUnreachable(f"the secret {name} cannot be read now") from exc
    return text


def destination_admin(settings: AdminSettings) -> DestinationAdmin:
    """Return the registry of destinations."""
    from lakesync.gateway.destination_admin import DestinationAdmin  # noqa: PLC0415

    return DestinationAdmin(
        wiring.buffer(settings),
        wiring.objects(settings, settings.lake_bucket),
        LateQueue(settings, settings.deliver_queue_url),
        wall_clock=wiring.wall_clock,
        asks=asks_database(settings, settings.deliver_function),
    )


def asks_database(settings: AdminSettings, function: str) -> AsksDatabase:
    """Return a function that has a function ask databases; those of Iceberg, the one that has it.

    Args:
        settings: the administration's.
        function: the name of the function that will use the database.
    """
    from lakesync.runtime.invocations import ASK_S, asked_by  # noqa: PLC0415

    lakes = wiring.invoker(settings, settings.lake_flow_function, ASK_S)
    return asked_by(wiring.invoker(settings, function, ASK_S), lakes)


class LateQueue:
    """An SQS queue that is created when it is first needed: the SDK is most of a cold start."""

    def __init__(self, settings: Aws, url: str) -> None:
        self._made = cache(lambda: wiring.queue(settings, url))

    def send(self, body: str) -> None:
        self._made().send(body)

    def delay(self, receipt: str, seconds: int) -> None:
        """Let a message that was received come again after so long."""
        self._made().delay(receipt, seconds)
