"""Administration of connectors: register, show, check, pause, run, reset, remove.

Secrets are removed from the settings before anything else is stored, and are given only to the
connector itself.

Laws N7-N8: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.pages import client_id_of, identifier
from lakesync.connectors.port import FEED, NOTHING_ALLOWED, Storage
from lakesync.connectors.registry import (
    Definition,
    asked,
    check_name,
    configured,
    connector_type,
    definition_from,
    discovered,
    made_connector,
    secret_name,
    secret_names,
    secrets_in,
    shown,
    tables_of,
)
from lakesync.connectors.state import DELETIONS, DeadLetters, PollState, state_from
from lakesync.core.delta import CONNECTORS_USER
from lakesync.errors import Conflict, LakeSyncError, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.connectors.port import Connector, ConnectorType, Outside, SourceTable
    from lakesync.declare.flows import DeclaredConnector
    from lakesync.ports import (
        AccessStore,
        ConnectorStore,
        ObjectStore,
        PollSchedules,
        SecretStore,
        StoredConnector,
        WallClock,
    )

CONNECTORS_MAX: Final = 50
"""Connectors and polled flows of one gateway; each has its own secret, at $0.40 a month."""
LETTERS_SHOWN_MAX: Final = 20
"""Dead letters that are shown of a connector."""
_LEASE_MS: Final = 60_000


class ConnectorAdmin:
    """Registers and shows the connectors of gateways."""

    def __init__(
        self,
        store: ConnectorStore,
        secrets: SecretStore,
        schedules: PollSchedules,
        objects: ObjectStore,
        access: AccessStore,
        *,
        wall_clock: WallClock,
        outside: Outside = NOTHING_ALLOWED,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._schedules = schedules
        self._objects = objects
        self._access = access
        self._wall_clock = wall_clock
        self.outside = outside

    def register(self, gateway: str, wanted: DeclaredConnector) -> str:
        """Register a connector, and begin to poll it; returns its source's answer.

        Raises:
            ValidationFailed: the settings are invalid, or the source refuses them.
            NotFound: there is no such type.
            Conflict: the name is in use.
        """
        kind = connector_type(wanted.type)
        secret = secret_names(kind)
        settings = configured(kind, dict(wanted.configuration))
        tables_of(kind, settings)
        self.check_free(gateway, wanted.name)
        message = ""
        if wanted.check:
            with closing(self.made(kind, settings, gateway, wanted.name)) as connector:
                message = asked(connector)
        public = {name: value for name, value in wanted.configuration.items() if name not in secret}
        definition = Definition(wanted.type, public, wanted.every_minutes)
        hidden = secrets_in(wanted.configuration, secret)
        self.begin(gateway, wanted.name, definition, hidden)
        return message

    def test(
        self, gateway: str, wanted: DeclaredConnector, *, with_schemas: bool = False
    ) -> dict[str, Any]:
        """Check unregistered settings with their source, and store nothing; returns its answer.

        Works with a name in use too, so new settings can be tried before an update. The answer has
        the tables' schemas too if they are requested, by the types that the source has.

        Raises:
            ValidationFailed: the settings are invalid, or the source refuses them.
            NotFound: there is no such type.
        """
        kind = connector_type(wanted.type)
        settings = configured(kind, dict(wanted.configuration))
        named = dict(tables_of(kind, settings))
        named.pop(FEED, None)
        scratch = Storage.scratch(gateway, wanted.name)
        with closing(kind.make(settings, scratch, self.outside)) as connector:
            message = asked(connector)
            schemas = schemas_of(discovered(connector), named) if with_schemas else None
        answer = {"name": wanted.name, "message": message, "tables": [*named.values()]}
        return answer | ({} if schemas is None else {"schemas": schemas})

    def all(self, gateway: str) -> list[dict[str, Any]]:
        """Return a gateway's connectors, with their progress, and without secrets."""
        return [shown(each, self._wall_clock()) for each in self._store.connectors(gateway)]

    def one(self, gateway: str, name: str) -> dict[str, Any]:
        """Return one connector, with its settings and its first dead letters.

        Raises:
            NotFound: there is none of that name.
        """
        stored = self._stored(gateway, name)
        letters = DeadLetters(self._storage(gateway, name)).first(LETTERS_SHOWN_MAX)
        definition = definition_from(stored.definition)
        settings = {"configuration": definition.configuration, "deadLetters": letters}
        return shown(stored, self._wall_clock(), gateway) | settings

    def check(self, gateway: str, name: str) -> str:
        """Check a connector with its source; returns the source's sentence.

        Raises:
            NotFound: there is none of that name.
            ValidationFailed: the source refuses, or does not answer.
        """
        stored = self._stored(gateway, name)
        definition = definition_from(stored.definition)
        storage = self._storage(gateway, name)
        self._secrets.get_anew(secret_name(gateway, name))
        connector, _ = made_connector(
            self._secrets, storage, self.outside, gateway, name, definition
        )
        with closing(connector):
            return asked(connector)

    def configure(self, gateway: str, name: str, configuration: Mapping[str, Any]) -> str:
        """Update a connector's settings after its source accepts them; returns its answer.

        Secrets that are not named keep their values.

        Raises:
            NotFound: there is none of that name.
            ValidationFailed: the settings are invalid, or the source refuses them.
            Conflict: another administrator just changed it.
        """
        stored = self._stored(gateway, name)
        definition = definition_from(stored.definition)
        kind = connector_type(definition.type)
        secret = secret_names(kind)
        hidden = dict(self._secrets.get_anew(secret_name(gateway, name)))
        before = {**definition.configuration, **hidden}
        hidden = {key: value for key, value in hidden.items() if key not in configuration}
        hidden |= secrets_in(configuration, secret)  # null removes a secret
        public = {key: value for key, value in configuration.items() if key not in secret}
        settings = configured(kind, {**public, **hidden})
        tables_of(kind, settings)
        with closing(self.made(kind, settings, gateway, name)) as connector:
            message = asked(connector)
        self._secrets.put(secret_name(gateway, name), hidden)
        changed = replace(definition, configuration=public)
        if not self._store.change(gateway, name, stored.definition, changed.to_json()):
            raise Conflict("the connector was just changed; try again")
        if kind.forget is not None:
            storage = self._storage(gateway, name)
            forgot = kind.forget(configured(kind, before), storage, settings, self.outside)
            message = f"{message} {forgot}"
        return message.rstrip()

    def set_paused(self, gateway: str, name: str, *, paused: bool) -> None:
        """Pause or resume the polls of a connector. Safe to repeat.

        Raises:
            NotFound: there is none of that name.
            Conflict: another administrator just changed it.
        """
        stored = self._stored(gateway, name)
        definition = replace(definition_from(stored.definition), paused=paused)
        if not self._store.change(gateway, name, stored.definition, definition.to_json()):
            raise Conflict("the connector was just changed; try again")
        self._schedules.put(gateway, name, definition.every_minutes, paused=paused)

    def run(self, gateway: str, name: str) -> None:
        """Begin a poll now, without waiting for its end.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is paused.
        """
        if definition_from(self._stored(gateway, name).definition).paused:
            raise Conflict(f"{name} is paused: resume it first")
        self._schedules.poll_now(gateway, name)

    def reset(self, gateway: str, name: str) -> None:
        """Forget a connector's cursors, so that its next poll reads everything. Safe to repeat.

        Rows that are read again are duplicates, or are stamped with that poll if the source has no
        change times.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is being polled.
            ValidationFailed: what it created at its source could not be removed.
        """
        self._stored(gateway, name)
        stored = self._leased(gateway, name)
        if remains := self._forgotten(gateway, stored):
            raise ValidationFailed(f"it was not reset: {remains}")
        self._storage(gateway, name).clear(keeping=DELETIONS)
        before = state_from(stored.state)
        # The next poll must be later than all before, or its rows would get older stamps.
        polled_ms = max(before.polled_ms, before.poll_ms)
        fresh = PollState(polled_ms=polled_ms, deleted=before.deleted)
        self._store.save(gateway, name, stored.lease, fresh.to_json(), 0)

    def remove(self, gateway: str, name: str) -> str:
        """Remove a connector, but not its rows; returns what remains at its source.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is being polled, and creates something at its source.
        """
        stored = self._stored(gateway, name)
        remains = ""
        if _makes_something(stored):
            # A concurrent poll would create again what is removed.
            remains = self._forgotten(gateway, self._leased(gateway, name))
        self._schedules.remove(gateway, name)
        self._secrets.remove(secret_name(gateway, name))
        self._storage(gateway, name).clear()
        self._store.remove(gateway, name)
        return remains

    def remove_all(self, gateway: str) -> None:
        """Remove all connectors of a gateway, as it is deleted. Safe to repeat."""
        for each in self._store.connectors(gateway):
            self.remove(gateway, each.name)

    # --- what flows ask for too -------------------------------------------------------------------

    def check_free(self, gateway: str, name: str) -> None:
        """Refuse a name that is in use, or a connector above the limit.

        Raises:
            Conflict: the name is in use.
            ValidationFailed: the limit is reached.
        """
        taken = [each.name for each in self._store.connectors(gateway)]
        if name in taken:
            raise _taken(name)
        if len(taken) >= CONNECTORS_MAX:
            raise ValidationFailed(f"a gateway has at most {CONNECTORS_MAX} connectors")

    def begin(
        self, gateway: str, name: str, definition: Definition, hidden: Mapping[str, str]
    ) -> None:
        """Store a definition with its secrets, and poll it from now on.

        Raises:
            Conflict: the name is in use, here or by a client.
        """
        if self._access.bind(gateway, client_id_of(name), CONNECTORS_USER) != CONNECTORS_USER:
            raise Conflict("a client writes under this connector's id: choose another name")
        if not self._store.add(gateway, name, definition.to_json(), self._wall_clock()):
            raise _taken(name)
        try:
            self._secrets.put(secret_name(gateway, name), hidden)
            self._schedules.put(gateway, name, definition.every_minutes, paused=False)
        except LakeSyncError:
            # A half-stored connector might be polled, or not, without notice.
            with suppress(LakeSyncError):  # the first failure is what counts
                self.remove(gateway, name)
            raise

    def complete(self, gateway: str, name: str, hidden: Mapping[str, str]) -> None:
        """Complete a start whose process died after its first write, with these secrets."""
        stored = self._store.connector(gateway, name)
        if stored is not None:
            definition, secret = definition_from(stored.definition), secret_name(gateway, name)
            if hidden and not self._secrets.get_anew(secret_name(gateway, name)):
                self._secrets.put(secret, hidden)
            self._schedules.put(gateway, name, definition.every_minutes, paused=definition.paused)

    def rewind(
        self,
        gateway: str,
        name: str,
        moved: Callable[[Mapping[str, str], Mapping[str, str]], Mapping[str, str]],
    ) -> None:
        """Make the next poll read some tables from other cursors. Safe to repeat.

        ``moved`` gives those cursors, from the secrets and the current cursors.

        Raises:
            Conflict: it is being polled.
            LakeSyncError: what ``moved`` raises; nothing was changed.
        """
        secrets = self._secrets.get_anew(secret_name(gateway, name))
        stored = self._leased(gateway, name)
        state = state_from(stored.state)
        try:
            cursors = moved(secrets, state.cursors)
        except LakeSyncError:
            self._store.save(gateway, name, stored.lease, stored.state, 0)
            raise
        state.cursors |= cursors
        state.polled_ms, state.poll_ms = max(state.polled_ms, state.poll_ms), 0
        state.finished = []
        for source in cursors:
            state.begun.pop(source, None)
        self._store.save(gateway, name, stored.lease, state.to_json(), 0)

    def made(self, kind: ConnectorType, settings: Any, gateway: str, name: str) -> Connector:
        """Make a connector of settings that are valid; close it."""
        return kind.make(settings, self._storage(gateway, name), self.outside)

    # --- stored connectors ------------------------------------------------------------------------

    def _stored(self, gateway: str, name: str) -> StoredConnector:
        stored = self._store.connector(gateway, check_name(name))
        if stored is None:
            raise NotFound(f"there is no connector {name}", field="name")
        return stored

    def _storage(self, gateway: str, name: str) -> Storage:
        return Storage(self._objects, gateway, name)

    def _leased(self, gateway: str, name: str) -> StoredConnector:
        """Exclude polls from a connector that is being reset or removed.

        Raises:
            Conflict: it is being polled.
        """
        now_ms = self._wall_clock()
        stored = self._store.lease(gateway, name, now_ms, now_ms + _LEASE_MS)
        if stored is None:
            raise Conflict(f"{name} is being polled: pause it, and try again in a minute")
        return stored

    def _forgotten(self, gateway: str, stored: StoredConnector) -> str:
        """Remove what a connector created at its source; returns what remains there."""
        name, public = definition_from(stored.definition).reads()
        kind = connector_type(name) if name else None
        if kind is None or kind.forget is None:
            return ""
        hidden = self._secrets.get_anew(secret_name(gateway, stored.name))
        settings = configured(kind, {**public, **hidden})
        return kind.forget(settings, self._storage(gateway, stored.name), None, self.outside)


def _makes_something(stored: StoredConnector) -> bool:
    """Say whether connectors of a type make something at their sources."""
    try:
        return connector_type(definition_from(stored.definition).reads()[0]).forget is not None
    except NotFound:
        return False  # its package is gone: what it created cannot be removed here


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a connector {name} already: choose another name, or remove it first")


# --- columns --------------------------------------------------------------------------------------


def schemas_of(
    discovered: Iterable[SourceTable], tables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the schemas of tables as ``POST /admin/schema`` takes them.

    Any column may be null: a source that has none today may have some tomorrow.

    Args:
        tables: the source's names of the tables, each with the gateway's.
    """
    return [
        {
            "table": tables[table.name],
            "columns": [
                {"name": identifier(column.name), "type": column.type} for column in table.columns
            ],
        }
        for table in discovered
        if table.name in tables and table.columns
    ]
