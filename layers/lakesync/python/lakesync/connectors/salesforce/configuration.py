"""How a Salesforce connector is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.connectors.deltas import identifier
from lakesync.connectors.sql.configuration import (
    OVERLAP_S_MAX,
    TABLES_POLLED_MAX,
    Name,
    NamedTable,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

FIELDS_MAX = 500
"""Fields of one object that are read; each is a column."""
ApiName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,79}$")]
"""The name of an object or field: it becomes part of queries, so no other text is allowed."""


class SalesforceTable(NamedTable):
    """One object that is read."""

    name: ApiName = Field(description="The object's API name: Account, Invoice__c.")
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway.")
    fields: list[ApiName] | None = Field(
        None, min_length=1, max_length=FIELDS_MAX, description="Only these fields; else all."
    )

    @property
    def table(self) -> str:
        """The table's name in the gateway."""
        return self.as_ or identifier(self.name)


class SalesforceOrg(Settings):
    """The address of a Salesforce organisation, and the account for requests."""

    instance: str = Field(max_length=255, description="https://….my.salesforce.com")
    client_id: Name = Field(
        description="The consumer key of a connected app with the flow for client credentials."
    )
    client_secret: SecretStr = Field(description="Its consumer secret.")
    limit_share: int = Field(
        80, ge=1, le=100,
        description="Of the organisation's API requests of a day, the percentage up to which this "
        "asks: what is left is for others.",
    )  # fmt: skip

    @field_validator("instance")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        instance = value.rstrip("/")
        scheme, _, host = instance.partition("://")
        if scheme not in {"https", "http"} or not host or set("/@?# \\") & set(host):
            raise ValueError("instance is https:// and your domain at Salesforce, nothing more")
        return instance


def _usual() -> list[SalesforceTable]:
    names = ("Account", "Contact", "Lead", "Opportunity")
    return [SalesforceTable.model_validate({"name": name}) for name in names]


class SalesforceSettings(SalesforceOrg):
    """A Salesforce organisation that is polled."""

    tables: list[SalesforceTable] = Field(
        default_factory=_usual, min_length=1, max_length=TABLES_POLLED_MAX
    )
    overlap_s: int = Field(
        300, ge=0, le=OVERLAP_S_MAX,
        description="How long the longest transaction takes: so much is read again at each poll.",
    )  # fmt: skip
    bulk_rows_min: int = Field(
        20_000, ge=0,
        description="From how many rows an object's first load is left to a bulk query.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [table.name.lower() for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("an object is named twice")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by Salesforce's name, with the gateway's."""
        return {table.name: table.table for table in self.tables}
