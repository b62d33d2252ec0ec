"""The jobs' arguments, as Glue passes them: ``--name value``, among Glue's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.checkpoint import flushed_from_json
from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_catalogue import LakeCatalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.checkpoint import Flushed

_DAY_MS: Final = 86_400_000
_LAKE: Final = ("lake_bucket", "database_prefix", "catalog", "lake_catalogue", "stack")
_GLUE: Final = LakeCatalogue()


@dataclass(frozen=True, slots=True)
class Arguments:
    lake_bucket: str
    """The bucket of claims, staged batches and the lease."""
    database_prefix: str
    """What the catalogue databases of all gateways begin with."""
    catalog: str
    """What Spark calls the catalogue."""
    stack: str
    """Whose tables these are; no other stack's table is written to."""
    only: str = ""
    """One table, as ``gateway/table``; empty for everything that waits."""
    catalogue: LakeCatalogue = _GLUE
    """Which catalogue it is."""


@dataclass(frozen=True, slots=True)
class CheckpointArguments:
    """What a build of a checkpoint works on."""

    lake_bucket: str
    """The bucket of checkpoints."""
    database_prefix: str
    catalog: str
    stack: str
    flushed: Flushed
    """Which gateway, and how far it was flushed before the run began."""
    chunk_bytes: int
    """Of one object, at the most."""
    catalogue: LakeCatalogue = _GLUE


@dataclass(frozen=True, slots=True)
class MaintenanceArguments:
    """What a run of maintenance works on."""

    lake_bucket: str
    """The bucket of the leases."""
    database_prefix: str
    catalog: str
    stack: str
    snapshot_keep_ms: int
    """How long a snapshot is kept, for those who read it or look back."""
    only: str = ""
    """One gateway, or one table as ``gateway/table``; empty for all."""
    report_key: str = ""
    """Where the report is put as an object; empty if the log is enough."""
    erase_key: str = ""
    """The object that names the rows to erase, as the run's only work; empty for none."""
    rebuild: str = ""
    """``yes`` only rebuilds the state table, ``dry`` only reports what that would do."""
    catalogue: LakeCatalogue = _GLUE


@dataclass(frozen=True, slots=True)
class BigQueryArguments:
    """What a run works on that delivers to BigQuery."""

    lake_bucket: str
    """The bucket of claims and staged batches."""
    buffer_table: str
    """Where destinations are declared, and how it goes is noted."""
    deliver_queue_url: str
    """Where the function is told of what is its own."""
    secret_prefix: str
    """What the names of the secrets begin with that hold destinations' URLs."""
    region: str
    deltas_min: int
    """From how many waiting deltas on a table is the job's."""


def parse_bigquery_arguments(argv: Sequence[str]) -> BigQueryArguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing, or is not what it must be.
    """
    names = ("lake_bucket", "buffer_table", "deliver_queue_url", "secret_prefix", "region")
    given = required(argv, *names, "deltas_min")
    if not given["deltas_min"].isdecimal() or not int(given["deltas_min"]):
        raise ValidationFailed("--deltas_min is a number above 0", field="--deltas_min")
    return BigQueryArguments(
        lake_bucket=given["lake_bucket"],
        buffer_table=given["buffer_table"],
        deliver_queue_url=given["deliver_queue_url"],
        secret_prefix=given["secret_prefix"],
        region=given["region"],
        deltas_min=int(given["deltas_min"]),
    )


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing.
    """
    given = required(argv, *_LAKE)
    return Arguments(
        lake_bucket=given["lake_bucket"],
        database_prefix=given["database_prefix"],
        catalog=given["catalog"],
        stack=given["stack"],
        only=given.get("only", "").strip("/"),
        catalogue=LakeCatalogue.from_json(given["lake_catalogue"]),
    )


def parse_checkpoint_arguments(argv: Sequence[str]) -> CheckpointArguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing, or is not what it must be.
    """
    given = required(argv, *_LAKE, "flushed", "chunk_bytes")
    if not given["chunk_bytes"].isdecimal():
        raise ValidationFailed("--chunk_bytes is a number", field="--chunk_bytes")
    return CheckpointArguments(
        lake_bucket=given["lake_bucket"],
        database_prefix=given["database_prefix"],
        catalog=given["catalog"],
        stack=given["stack"],
        flushed=flushed_from_json(given["flushed"]),
        chunk_bytes=int(given["chunk_bytes"]),
        catalogue=LakeCatalogue.from_json(given["lake_catalogue"]),
    )


def parse_maintenance_arguments(argv: Sequence[str]) -> MaintenanceArguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing, or is not what it must be.
    """
    given = required(argv, *_LAKE, "snapshot_keep_days")
    if not given["snapshot_keep_days"].isdecimal():
        raise ValidationFailed("--snapshot_keep_days is a number", field="--snapshot_keep_days")
    return MaintenanceArguments(
        lake_bucket=given["lake_bucket"],
        database_prefix=given["database_prefix"],
        catalog=given["catalog"],
        stack=given["stack"],
        snapshot_keep_ms=int(given["snapshot_keep_days"]) * _DAY_MS,
        only=given.get("only", "").strip("/"),
        report_key=given.get("report_key", ""),
        erase_key=given.get("erase_key", ""),
        rebuild=given.get("rebuild", ""),
        catalogue=LakeCatalogue.from_json(given["lake_catalogue"]),
    )


def catalogue_settings(
    arguments: Arguments | CheckpointArguments | MaintenanceArguments,
    secrets: Callable[[str], Any],
) -> dict[str, str]:
    """Return the Spark configuration of the lake's catalogue, with its secret.

    Args:
        secrets: gives boto3's client of Secrets Manager in a region.
    """
    catalogue, region = arguments.catalogue, region_of(arguments.stack)
    secret = catalogue.read_secret(lambda: secrets(region))
    return catalogue.spark_settings(arguments.catalog, region, secret)


def region_of(stack: str) -> str:
    """Return a stack's region: nobody else says it in a job."""
    return stack.split(":")[3]


def required(argv: Sequence[str], *names: str) -> dict[str, str]:
    """Return all arguments by their names.

    Raises:
        ValidationFailed: a required one is missing.
    """
    given = dict(_pairs(argv))
    missing = [f"--{name}" for name in names if not given.get(name)]
    if missing:
        raise ValidationFailed(f"the job needs {', '.join(missing)}", field=missing[0])
    return given


def _pairs(argv: Sequence[str]) -> list[tuple[str, str]]:
    """Return each name with the word after it; a flag gets an empty value."""
    pairs = []
    for index, word in enumerate(argv):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = argv[index + 1] if index + 1 < len(argv) else ""
            pairs.append((name, value if equals else "" if _is_name(following) else following))
    return pairs


def _is_name(word: str) -> bool:
    return word.startswith("--")
