"""The jobs' arguments, as Glue passes them: ``--name value``, among Glue's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.checkpoint import flushed_from_json
from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_catalogue import LakeCatalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.checkpoint import Flushed

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class LakeArguments:
    """What all jobs on the lake work on."""

    lake_bucket: str
    """The bucket of claims, staged batches, checkpoints and leases."""
    database_prefix: str
    """What the catalogue databases of all gateways begin with."""
    catalog: str
    """What Spark calls the catalogue."""
    stack: str
    """Whose tables these are; no other stack's table is written to."""
    catalogue: LakeCatalogue = field(default=LakeCatalogue(), kw_only=True)
    """Which catalogue it is."""


@dataclass(frozen=True, slots=True)
class Arguments(LakeArguments):
    only: str = ""
    """One table, as ``gateway/table``; empty for everything that waits."""


@dataclass(frozen=True, slots=True)
class CheckpointArguments(LakeArguments):
    flushed: Flushed
    """Which gateway, and how far it was flushed before the run began."""
    chunk_bytes: int
    """Of one object, at the most."""


@dataclass(frozen=True, slots=True)
class MaintenanceArguments(LakeArguments):
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


@dataclass(frozen=True, slots=True)
class BigQueryArguments:
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


# What reads the arguments of a job passes over those of Glue itself, and raises `ValidationFailed`
# if one of ours is missing, or is not what it must be.


def parse_bigquery_arguments(argv: Sequence[str]) -> BigQueryArguments:
    names = ("lake_bucket", "buffer_table", "deliver_queue_url", "secret_prefix", "region")
    given = required(argv, *names, "deltas_min")
    deltas_min = number(given, "deltas_min", least=1)
    return BigQueryArguments(**{name: given[name] for name in names}, deltas_min=deltas_min)


def parse_arguments(argv: Sequence[str]) -> Arguments:
    given, lake = _lake(argv)
    return Arguments(**lake, only=given.get("only", "").strip("/"))


def parse_checkpoint_arguments(argv: Sequence[str]) -> CheckpointArguments:
    given, lake = _lake(argv, "flushed", "chunk_bytes")
    flushed = flushed_from_json(given["flushed"])
    return CheckpointArguments(**lake, flushed=flushed, chunk_bytes=number(given, "chunk_bytes"))


def parse_maintenance_arguments(argv: Sequence[str]) -> MaintenanceArguments:
    given, lake = _lake(argv, "snapshot_keep_days")
    more: dict[str, Any] = {
        name: given.get(name, "") for name in ("report_key", "erase_key", "rebuild")
    }
    keep_ms = number(given, "snapshot_keep_days") * _DAY_MS
    only = given.get("only", "").strip("/")
    return MaintenanceArguments(**lake, snapshot_keep_ms=keep_ms, only=only, **more)


def _lake(argv: Sequence[str], *more: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return all arguments, and those of `LakeArguments`."""
    names = ("lake_bucket", "database_prefix", "catalog", "lake_catalogue", "stack")
    given = required(argv, *names, *more)
    lake: dict[str, Any] = {name: given[name] for name in names}
    lake["catalogue"] = LakeCatalogue.from_json(lake.pop("lake_catalogue"))
    return given, lake


def catalogue_settings(arguments: LakeArguments, secrets: Callable[[str], Any]) -> dict[str, str]:
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


def number(given: Mapping[str, str], name: str, *, least: int = 0) -> int:
    if not given[name].isdecimal() or int(given[name]) < least:
        bound = f" above {least - 1}" if least else ""
        raise ValidationFailed(f"--{name} is a number{bound}", field=f"--{name}")
    return int(given[name])


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
