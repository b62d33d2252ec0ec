"""Builds what opens declared databases for functions. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from lakesync.core.archive import BUCKET
from lakesync.errors import AdapterRefused, AdapterUnreachable
from lakesync.runtime import wiring

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.adapters.objects.archive import HistoryArchive
    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.core.destinations import Destination
    from lakesync.delivery.archiving import Archiver
    from lakesync.delivery.deliver import Deliverer
    from lakesync.delivery.desk import Desk
    from lakesync.delivery.source_pull import SourcePulls
    from lakesync.delivery.table import TableDelivery
    from lakesync.gateway.destinations import AsksDatabase, DestinationAdmin
    from lakesync.runtime.settings import AdminSettings, Aws, DeliverSettings
    from lakesync.runtime.settings_sources import SourcePullSettings


def deliverer(settings: DeliverSettings) -> Deliverer:
    """Return the service behind ``functions/deliver``."""
    from lakesync.delivery.large import JobRuns  # noqa: PLC0415
    from lakesync.delivery.table import TableDelivery  # noqa: PLC0415

    def start() -> None:
        from lakesync.runtime.wiring_materialise import start_run  # noqa: PLC0415

        start_run(wiring.client(settings, "glue", attempts=2), settings.bigquery_job)

    large = JobRuns(settings.bigquery_job_deltas if settings.bigquery_job else 0, start)
    return delivers(settings, lambda desk: TableDelivery(desk, large))


def delivers(
    settings: DeliverSettings, table_delivery: Callable[[Desk], TableDelivery]
) -> Deliverer:
    """Return the service that delivers batches; ``table_delivery`` delivers a table."""
    from lakesync.adapters.lake.parquet import read_batch  # noqa: PLC0415
    from lakesync.delivery.deliver import Deliverer  # noqa: PLC0415

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
    from lakesync.delivery.archiving import Archiver  # noqa: PLC0415

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
        from lakesync.adapters.compositions import Lifecycle  # noqa: PLC0415

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
        from lakesync.adapters.connect import history_archive, read_connection  # noqa: PLC0415

        assert destination.archive  # noqa: S101 - asked for those alone
        name = f"{settings.secret_prefix}{gateway}/{destination.archive.secret}"
        connection = read_connection(secret_text(client(), name))
        if connection.kind != destination.archive.kind:
            kind = destination.archive.kind
            place = "a bucket's folder" if kind == BUCKET else f"a {kind} database"
            raise AdapterRefused(f"the secret {name} holds no URL of {place}")
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
        from lakesync.adapters.connect import read_connection  # noqa: PLC0415
        from lakesync.adapters.database import HISTORY_MS  # noqa: PLC0415
        from lakesync.materialise.opening import opened_database  # noqa: PLC0415

        name = f"{prefix}{gateway}/{secret}"
        connection = read_connection(secret_text(client(), name))
        if connection.kind != kind:
            raise AdapterRefused(f"the secret {name} holds no URL of a {kind} database")
        history_ms = None if keeps_all else HISTORY_MS
        return opened_database(
            connection.url, keeper, connection.credentials, history_ms=history_ms, hosts=hosts
        )

    return opened


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
    from lakesync.adapters.database_types import database_kinds  # noqa: PLC0415
    from lakesync.gateway.destinations import DestinationAdmin  # noqa: PLC0415

    return DestinationAdmin(
        wiring.buffer(settings),
        wiring.objects(settings, settings.lake_bucket),
        LateQueue(settings, settings.deliver_queue_url),
        wall_clock=wiring.wall_clock,
        asks=asks_database(settings, settings.deliver_function),
        kinds=database_kinds,
    )


def asks_database(settings: AdminSettings, function: str) -> AsksDatabase:
    """Return a function that has a function ask databases; those of Iceberg, the one that has it.

    Args:
        settings: the administration's.
        function: the name of the function that will use the database.
    """
    from lakesync.runtime.database_checks import ASK_S, asked_by  # noqa: PLC0415

    lakes = wiring.invoker(settings, settings.lake_flow_function, ASK_S)
    return asked_by(wiring.invoker(settings, function, ASK_S), lakes)


class LateQueue:
    """An SQS queue that is created when it is first needed: the SDK is most of a cold start."""

    def __init__(self, settings: Aws, url: str) -> None:
        self._made = cache(lambda: wiring.queue(settings, url))

    def send(self, body: str) -> None:
        """Hand a message over."""
        self._made().send(body)

    def delay(self, receipt: str, seconds: int) -> None:
        """Let a message that was received come again after so long."""
        self._made().delay(receipt, seconds)
