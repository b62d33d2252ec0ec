"""The connector type of PostgreSQL, and its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from lakesync.connectors.port import FEED, ConnectorType
from lakesync.errors import ValidationFailed
from lakesync.systems.sql.asked_source import forget_elsewhere, module_of, reader_of
from lakesync.systems.sql.sql_settings import CapturableSettings

if TYPE_CHECKING:
    from typing import Self

    from lakesync.connectors.port import Outside, Storage


SlotName = Annotated[str, Field(pattern="^[a-z0-9_]{1,63}$")]


class PostgresSettings(CapturableSettings):
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
    def _only_for_changes(self) -> Self:
        if not self.changes and (self.slot or self.publication):
            raise ValueError("slot and publication are for changes: set changes to true")
        return self


def _forget(
    settings: PostgresSettings,
    storage: Storage,
    following: PostgresSettings | None,
    outside: Outside,
) -> str:
    if outside.asks is not None:
        return forget_elsewhere("postgres", settings, storage, following, outside.asks)
    forget = module_of("postgres", "capture").forget
    remains: str = forget(settings, storage, following, outside.databases)
    return remains


def _begins_at(settings: PostgresSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.sql.by_time import begins_at  # noqa: PLC0415 - asked for

    if source == FEED:
        raise ValidationFailed(
            "a slot of PostgreSQL cannot go back to a time, as its log is dropped once it was "
            "read: leave the time out to read the tables again, which changes nothing that is "
            "there already, or have a table read by a cursorColumn, without changes",
            field="from",
        )
    return cursor if settings.changes else begins_at(settings, source, cursor, at_us)


POSTGRES = ConnectorType(
    "postgres", "PostgreSQL", PostgresSettings, partial(reader_of, "postgres"),
    PostgresSettings.named, _forget,
    begins_at=_begins_at,
)  # fmt: skip
