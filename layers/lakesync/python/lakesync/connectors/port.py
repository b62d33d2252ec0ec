"""What a connector is: an outside system whose rows are read page by page.

A connector that you write passes `lakesync.testing.connector_contract`, and is found by its entry
point; see ``docs/guide/connectors.md``. Laws N1-N6: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel

    from lakesync.connectors.outside import Outside
    from lakesync.connectors.signatures import Signed
    from lakesync.connectors.storage import Storage
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


FEED: Final = "(feed)"
"""What is read of a connector whose source tells the changes of all tables in one sequence; first
among `ConnectorType.tables`, and no table's name."""

KEPT_BYTES: Final = "keptBytes"
"""In `SourcePage.report`: what the source keeps until this connector has read it. Alarmed."""


class SourceColumn(NamedTuple):
    """One column of a source's table."""

    name: str
    type: str
    """Of `lakesync.core.column_types.TYPES`."""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table of a source, as it can be read."""

    name: str
    """The source's name for it: what `Connector.read` is asked for."""
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    """The columns that tell its rows apart; empty if it cannot be read for want of them."""


class Change(NamedTuple):
    """A row as the source has it, or that it is gone."""

    row_id: str
    columns: Mapping[str, Any] | None
    """JSON values by column; None if the row was deleted."""
    changed_us: int | None = None
    """When the source changed it, in microseconds since 1970; None if the source does not tell: it
    is then as old as the poll."""
    table: str = ""
    """The source's name for its table; empty for the one that was asked for."""
    hlc: int | None = None
    """The change's own stamp, from a source that has stamps; in place of ``changed_us``."""


class Unreadable(NamedTuple):
    """A row that the connector cannot give as JSON values."""

    row_id: str
    reason: str
    table: str = ""
    """As `Change.table`."""


@dataclass(frozen=True, slots=True)
class SourcePage:
    """Some of a table's changes, and where to read on."""

    changes: tuple[Change, ...]
    cursor: str
    """What to ask with next: now, if there is more, else at the next poll. At most
    `lakesync.connectors.state.CURSOR_BYTES_MAX`."""
    has_more: bool
    unreadable: tuple[Unreadable, ...] = ()
    is_dated: bool = False
    """The connector saw to it that what comes later is dated later, by whatever clock: its times
    are taken as they are, and none lies ahead by more than what it had to tell apart."""
    report: Mapping[str, str | int] = field(default_factory=dict)
    """What the source says of itself, shown with the connector; empty to leave what it said
    before."""


class Connector(Protocol):
    """A source. Made for one poll or one question; used by one thread.

    What can happen in operation is an `Err`: `AdapterUnreachable` and others to try again, with
    the seconds that the source asks for; `AdapterRefused` and others that somebody must mend.
    """

    def check(self) -> Result[str, LakeSyncError]:
        """Say in one sentence that the configuration is right, having asked the source."""
        ...

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Give the tables that there are, with their columns, types and keys."""
        ...

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Give changes behind a cursor.

        A page of the same cursor and poll gives the same changes again, but for rows that changed
        meanwhile at a later `Change.changed_us`.

        Args:
            table: a `SourceTable.name`, or `FEED`.
            cursor: `SourcePage.cursor` of the page before, which is durable by then with all that
                lies before it; empty for the first of all.
            rows_max: about how many changes it may give; memory is bounded by it.
            poll_ms: when the poll began: the same for all of its pages, however often it was
                interrupted; later for each poll.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Stretch(NamedTuple):
    """Some rows of a table, one behind another, which are read without the rest."""

    begins: str
    """The cursor with which its first page is asked for."""
    ends: str
    """The cursor behind its last page; empty if fewer rows are left than were asked for, or if the
    table cannot be divided from there on."""


@runtime_checkable
class Divisible(Connector, Protocol):
    """A connector whose tables are read in stretches, several at once."""

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Give the next so many rows behind a cursor as a stretch; reads none of them.

        Args:
            table: a `SourceTable.name`.
            cursor: as of `Connector.read`.
            rows: how many it is to have, at least.
            poll_ms: as of `Connector.read`.
        """
        ...

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Give changes behind a cursor as `Connector.read` does, up to where a stretch ends.

        Its last page has no more, and the cursor ``ends``.

        Args:
            table: a `SourceTable.name`.
            cursor: `Stretch.begins`, or `SourcePage.cursor` of the page before.
            ends: `Stretch.ends`.
            rows_max: as of `Connector.read`.
            poll_ms: as of `Connector.read`.
        """
        ...


class Delivery(NamedTuple):
    """A webhook of the source, whose signature is right."""

    sent_ms: int
    """When it was sent, by the source's clock; a change without a time of its own has this one."""
    body: bytes


@runtime_checkable
class TakesWebhooks(Connector, Protocol):
    """A connector that is told of changes, beside being polled."""

    def on_webhook(self, delivery: Delivery) -> Result[SourcePage, LakeSyncError]:
        """Give the changes that a delivery tells of, each with its `Change.table`.

        They are as a poll gives them, with the same times: so that the poll behind it brings
        nothing new. A body that cannot be read is a `lakesync.errors.ValidationFailed`. Another
        process may be polling: what `read` keeps in the storage is not changed here.
        """
        ...


@dataclass(frozen=True)
class WebhookType:
    """How a source signs what it sends."""

    secret: str
    """The setting with the secret, by its name in JSON; webhooks are refused where it is not
    set."""
    verify: Callable[[str, Mapping[str, str], bytes], Signed]
    """Verifies a delivery by the secret, the headers (names in lower case) and the body; see
    `lakesync.connectors.signatures`."""
    age_s_max: int = 300
    """How long ago a delivery may have been signed: longer if the source repeats what was not taken
    under the signature that it had."""


@dataclass(frozen=True)
class ConnectorType:
    """A kind of connector: how it is configured, and how it is made."""

    name: str
    title: str
    """What people call the outside system."""
    configuration: type[BaseModel]
    """Its settings; those that are a `pydantic.SecretStr` are secrets."""
    make: Callable[[Any, Storage, Outside], Connector]
    """Makes one of settings that are valid; connects to nothing, imports drivers. Raises
    `lakesync.errors.ValidationFailed` if the operator does not allow it."""
    tables: Callable[[Any], Mapping[str, str]]
    """Gives the tables that settings ask for, by the source's name, with the gateway's."""
    forget: Callable[[Any, Storage, Any], str] | None = None
    """Removes what a connector made at its source, unless it goes on with it by the settings that
    follow (None: it is removed, or reset); says what remains there to be removed by hand. None if
    connectors of the type make nothing."""
    webhook: WebhookType | None = None
    """How its source signs webhooks; None if its connectors take none, and are no
    `TakesWebhooks`."""
    begins_at: Callable[[Any, str, str, int], str] | None = None
    """Gives the cursor from which what changed since a time is read again, by the settings, the
    source's name for a table, its cursor as it is, and the time in microseconds since 1970; that
    cursor itself if it lies before, or is empty. Raises `lakesync.errors.ValidationFailed` for a
    table whose rows tell no times. None if none of the type's do."""
