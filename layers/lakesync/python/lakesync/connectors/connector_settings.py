"""Settings of connectors and action handlers, as JSON gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from lakesync.adapters.network import host_fault
from lakesync.core.names import check_table_name
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from typing import Self


TABLES_POLLED_MAX = 100
"""Tables of one connector: their cursors lie in one item."""
OVERLAP_S_MAX = 86_400
"""The longest duration of a source's transaction that changes a polled table."""
Name = Annotated[str, Field(min_length=1, max_length=128)]


def _host(value: str) -> str:
    if fault := host_fault(value):
        raise ValueError(fault)
    return value


Host = Annotated[Name, AfterValidator(_host)]


class Settings(BaseModel):
    """Settings in JSON have names like `cursorColumn`; unknown ones are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class NamedTable(Settings, ABC):
    """A table of a source: its name in the gateway is one that a table may have."""

    @property
    @abstractmethod
    def table(self) -> str:
        """The table's name in the gateway."""

    @model_validator(mode="after")
    def _named_well(self) -> Self:
        try:
            check_table_name(self.table, "as")
        except ValidationFailed as error:
            raise ValueError(error.message) from error
        return self
