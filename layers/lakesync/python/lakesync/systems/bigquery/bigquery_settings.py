"""The connector type of BigQuery, and its settings."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.connectors.http import ANY, is_listed
from lakesync.connectors.port import TABLES_POLLED_MAX, ConnectorType, Name
from lakesync.errors import ValidationFailed
from lakesync.systems.sql.sql_settings import PolledSettings, PolledTable

if TYPE_CHECKING:
    from typing import Self

    from lakesync.connectors.port import Connector, Outside, Storage


BYTES_BILLED_DEFAULT = 10 * 1024**3
"""What one query of a poll may be billed for, unless the settings say otherwise."""
PARTITION_DAYS_MAX = 3_650
"""The oldest partitions that a poll can be limited to."""
TOKEN_URI: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - Google's address
_NAME_PARTS_MAX: Final = 3
_KEY: Final = "the key of a service account, as JSON, with Google's token_uri"


class BigQueryTable(PolledTable):
    """One table that is polled."""

    partition_days: int | None = Field(
        None, ge=1, le=PARTITION_DAYS_MAX,
        description=(
            "Only partitions of the last days are read, for a table whose partitions are of "
            "another column than cursorColumn. Rows that change in older ones are not noticed."
        ),
    )  # fmt: skip

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if len(self.name.split(".")) > _NAME_PARTS_MAX:
            raise ValueError("name: a table, dataset.table or project.dataset.table")
        if self.partition_days and (self.query or not self.cursor_column):
            raise ValueError(
                "partitionDays is for a table with a cursorColumn: by difference rows of other "
                "partitions would be deleted, and a query has filters of its own"
            )
        return self


class BigQuerySettings(PolledSettings):
    """A dataset of BigQuery."""

    project: Name = Field(
        pattern="^[a-z][a-z0-9-]{2,62}$", description="It runs and pays for the queries."
    )
    dataset: Name = Field(
        pattern="^[A-Za-z0-9_]+$", description="That of tables whose names state no other."
    )
    location: str = Field(
        "", pattern="^[A-Za-z0-9-]{0,40}$",
        description="The dataset's, such as EU; if empty, BigQuery determines it.",
    )  # fmt: skip
    credentials: SecretStr | None = Field(
        None,
        description="The key of a service account, as JSON; needed unless endpoint is an emulator.",
    )
    endpoint: str = Field(
        "", pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?)?$",
        description="The API's address if it is not the public one; ConnectorHosts must list it.",
    )  # fmt: skip
    maximum_bytes_billed: int = Field(
        BYTES_BILLED_DEFAULT, ge=1,
        description="A poll of a table that would be billed for more is refused, at no cost.",
    )  # fmt: skip
    tables: list[BigQueryTable] = Field(min_length=1, max_length=TABLES_POLLED_MAX)

    @field_validator("credentials")
    @classmethod
    def _is_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Accept what can only be exchanged at Google, for what its owner may do there.

        Federation would lend the identity of the operator's functions to whoever names a pool.
        """
        if value is None:
            return None
        try:
            key = json.loads(value.get_secret_value())
            is_key = (key["type"], key["token_uri"]) == ("service_account", TOKEN_URI)
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(_KEY) from exc
        if not is_key:
            raise ValueError(_KEY)
        return value

    @model_validator(mode="after")
    def _has_credentials(self) -> Self:
        if self.credentials is None and not self.endpoint.startswith("http://"):
            raise ValueError(f"credentials: {_KEY}")
        return self


def _bigquery(settings: BigQuerySettings, storage: Storage, outside: Outside) -> Connector:
    named = [entry for entry in outside.hosts if entry != ANY]
    if settings.endpoint and not is_listed(settings.endpoint, named):
        raise ValidationFailed(
            f"the operator of this stack does not list {settings.endpoint} in ConnectorHosts: "
            "leave endpoint out, or ask for it",
            field="configuration.endpoint",
        )
    try:  # by its name, as it imports these settings
        reader = import_module("lakesync.systems.bigquery.bigquery_source")
    except ModuleNotFoundError as exc:
        raise ValidationFailed(
            "the library of BigQuery is missing: install google-cloud-bigquery", field="type"
        ) from exc
    connector: Connector = reader.made(settings, storage)
    return connector


def _begins_at(settings: BigQuerySettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.bigquery.bigquery_queries import (  # noqa: PLC0415 - when asked for
        time_place_from,
    )
    from lakesync.systems.sql.by_time import begins_at  # noqa: PLC0415 - as above

    return begins_at(settings, source, time_place_from(cursor).before, at_us)


BIGQUERY = ConnectorType(
    "bigquery", "BigQuery", BigQuerySettings, _bigquery, BigQuerySettings.named,
    begins_at=_begins_at,
)  # fmt: skip
