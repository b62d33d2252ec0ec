"""How a Jira connector is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.connectors.sql.configuration import OVERLAP_S_MAX, Name, NamedTable, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

PROJECTS_MAX = 100
"""Projects that a Jira connector is restricted to; they are part of each search."""
CUSTOM_FIELDS_MAX = 300
"""Custom fields of issues that are read; each is a column."""
WEBHOOK_SECRET_CHARS_MIN = 16
"""The shortest secret that Jira signs webhooks with."""
RECONCILE_MINUTES_MAX = 43_200
"""The longest time between two searches for deletions."""
ALL = "*"
TableName = Literal["issues", "comments", "worklogs", "projects", "users"]
ProjectKey = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,254}$")]


class JiraTable(NamedTable):
    """One table that is read."""

    name: TableName
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway; else jira_….")

    @property
    def table(self) -> str:
        """The table's name in the gateway."""
        return self.as_ or f"jira_{self.name}"


class JiraSite(Settings):
    """The address of a Jira Cloud site, and the account for requests."""

    site: str = Field(max_length=255, description="https://….atlassian.net")
    email: Name = Field(description="The e-mail address of the account that the token is of.")
    api_token: SecretStr = Field(description="An API token of that account.")

    @field_validator("site")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        site = value.rstrip("/")
        scheme, _, host = site.partition("://")
        if scheme not in {"https", "http"} or not host or set("/@?# \\") & set(host):
            raise ValueError("site is https:// and the host of your Jira, and nothing more")
        return site


def _all_tables() -> list[JiraTable]:
    names: tuple[TableName, ...] = ("issues", "comments", "worklogs", "projects", "users")
    return [JiraTable(name=name, **{"as": None}) for name in names]


class JiraSettings(JiraSite):
    """A Jira Cloud site that is polled."""

    tables: list[JiraTable] = Field(default_factory=_all_tables, min_length=1)
    projects: list[ProjectKey] = Field(
        default_factory=list, max_length=PROJECTS_MAX,
        description="Keys of projects; none: all that the account may see.",
    )  # fmt: skip
    custom_fields: list[Name] = Field(
        default_factory=list, max_length=CUSTOM_FIELDS_MAX,
        description="Custom fields of issues, by name or id; * for all.",
    )  # fmt: skip
    overlap_s: int = Field(
        300, ge=0, le=OVERLAP_S_MAX,
        description="How late Jira's search may show a change: so much is read again at each poll.",
    )  # fmt: skip
    reconcile_minutes: int = Field(
        1_440, ge=0, le=RECONCILE_MINUTES_MAX,
        description="How often issues and comments are compared with what was brought, to notice "
        "those that were deleted.",
    )  # fmt: skip
    webhook_secret: SecretStr | None = Field(
        None, min_length=WEBHOOK_SECRET_CHARS_MIN, max_length=512,
        description="The secret of a webhook in Jira: changes of issues are here at once.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("a table is named twice")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by Jira's name, with the gateway's."""
        return {table.name: table.table for table in self.tables}
