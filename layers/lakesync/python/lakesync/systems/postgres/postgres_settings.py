"""The connector type of PostgreSQL, and its settings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from lakesync.connectors.port import FEED, ConnectorType
from lakesync.errors import ValidationFailed
from lakesync.systems.sql.asked_source import AskedSource, forget_elsewhere
from lakesync.systems.sql.sql_settings import SqlSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lakesync.connectors.port import Connector, Outside, Storage


SlotName = Annotated[str, Field(pattern="^[a-z0-9_]{1,63}$")]


class PostgresSettings(SqlSettings):
    """A PostgreSQL database, 13 or newer."""

    port: int = Field(5432, ge=1, le=65535)
    changes: bool = Field(
        default=False,
        description=(
            "Read the database's log of changes, by a replication slot: every insert, update and "
            "deletion, without asking the tables. Needs wal_level = logical."
        ),
    )
    slot: SlotName | None = Field(None, description="The slot's name; else one is made up.")
    publication: SlotName | None = Field(
        None, description="A publication to use, or to make; else it is named as the slot is."
    )

    @model_validator(mode="after")
    def _captured_or_polled(self) -> Self:
        if self.changes and any(table.cursor_column or table.query for table in self.tables):
            raise ValueError(
                "with changes no table has a cursorColumn or a query: all are captured"
            )
        if not self.changes and (self.slot or self.publication):
            raise ValueError("slot and publication are for changes: set changes to true")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by the source's name, with the gateway's; the feed first, if any."""
        return ({FEED: ""} if self.changes else {}) | dict(super().named())


def _postgres(settings: PostgresSettings, storage: Storage, outside: Outside) -> Connector:
    if outside.asks is not None:
        return AskedSource("postgres", settings, storage, outside.asks)
    reader = "postgres_capture" if settings.changes else "postgres_source"
    made: Connector = _module(reader).made(settings, storage, outside.databases)
    return made


def _module(name: str) -> Any:
    """Import what reads it when it is read: it imports the driver, and these settings."""
    return import_module(f"lakesync.systems.postgres.{name}")


def _forget(
    settings: PostgresSettings,
    storage: Storage,
    following: PostgresSettings | None,
    outside: Outside,
) -> str:
    if outside.asks is not None:
        return forget_elsewhere("postgres", settings, storage, following, outside.asks)
    remains: str = _module("postgres_capture").forget(
        settings, storage, following, outside.databases
    )
    return remains


def _begins_at(settings: PostgresSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.sql.by_time import begun_at, check_by_time  # noqa: PLC0415 - asked for

    if source == FEED:
        raise ValidationFailed(
            "a slot of PostgreSQL cannot go back to a time, as its log is dropped once it was "
            "read: leave the time out to read the tables again, which changes nothing that is "
            "there already, or have a table read by a cursorColumn, without changes",
            field="from",
        )
    if settings.changes:
        return cursor  # captured: it is read whole anyway
    check_by_time(settings, source)
    return begun_at(cursor, at_us, settings.overlap_s)


POSTGRES = ConnectorType(
    "postgres", "PostgreSQL", PostgresSettings, _postgres, PostgresSettings.named, _forget,
    begins_at=_begins_at,
)  # fmt: skip
