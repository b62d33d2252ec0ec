"""Administration of connectors: register, show, check, pause, run, reset, remove.

Secrets are removed from the settings before anything else is stored, and are given only to the
connector itself.
Laws N7-N8: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.columns import schemas_of
from lakesync.connectors.dead_letters import DeadLetters
from lakesync.connectors.definition import Definition, Registration, check_name, definition_from
from lakesync.connectors.forgetting import forgotten, leased, makes_something, reset
from lakesync.connectors.keeping import Keeping
from lakesync.connectors.outside import NOTHING_ALLOWED
from lakesync.connectors.port import FEED
from lakesync.connectors.registered import (
    asked,
    discovered,
    made_connector,
    secret_name,
    secrets_in,
    shown,
)
from lakesync.connectors.registry import configured, connector_type, secret_names, tables_of
from lakesync.connectors.storage import Storage
from lakesync.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector, ConnectorType
    from lakesync.ports import (
        AccessStore,
        ConnectorStore,
        ObjectStore,
        PollSchedules,
        SecretStore,
        StoredConnector,
        WallClock,
    )

LETTERS_SHOWN_MAX: Final = 20
"""Dead letters that are shown of a connector."""


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
        self.keeping = Keeping(store, secrets, schedules, access, wall_clock=wall_clock)
        self._wall_clock = wall_clock
        self.outside = outside

    def register(self, gateway: str, wanted: Registration) -> str:
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
        self.keeping.check_free(gateway, wanted.name)
        message = ""
        if wanted.check:
            with closing(self.made(kind, settings, gateway, wanted.name)) as connector:
                message = asked(connector)
        public = {name: value for name, value in wanted.configuration.items() if name not in secret}
        definition = Definition(wanted.type, public, wanted.every_minutes)
        hidden = secrets_in(wanted.configuration, secret)
        undo = partial(self.remove, gateway, wanted.name)
        self.keeping.begin(gateway, wanted.name, definition, hidden, undo)
        return message

    def test(
        self, gateway: str, wanted: Registration, *, with_schemas: bool = False
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
        self._secrets.forget(secret_name(gateway, name))
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
        hidden = dict(self._secrets.get(secret_name(gateway, name)))
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
        stored = leased(self._store, gateway, name, self._wall_clock())
        fresh = reset(self._secrets, self._storage(gateway, name), self.outside, gateway, stored)
        self._store.save(gateway, name, stored.lease, fresh.to_json(), 0)

    def remove(self, gateway: str, name: str) -> str:
        """Remove a connector, but not its rows; returns what remains at its source.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is being polled, and creates something at its source.
        """
        stored = self._stored(gateway, name)
        remains = ""
        if makes_something(stored):
            # A concurrent poll would create again what is removed.
            stored = leased(self._store, gateway, name, self._wall_clock())
            remains = forgotten(
                self._secrets, self._storage(gateway, name), self.outside, gateway, stored
            )
        self._schedules.remove(gateway, name)
        self._secrets.remove(secret_name(gateway, name))
        self._storage(gateway, name).clear()
        self._store.remove(gateway, name)
        return remains

    def remove_all(self, gateway: str) -> None:
        """Remove all connectors of a gateway, as it is deleted. Safe to repeat."""
        for each in self._store.connectors(gateway):
            self.remove(gateway, each.name)

    def _stored(self, gateway: str, name: str) -> StoredConnector:
        stored = self._store.connector(gateway, check_name(name))
        if stored is None:
            raise NotFound(f"there is no connector {name}", field="name")
        return stored

    def made(self, kind: ConnectorType, settings: Any, gateway: str, name: str) -> Connector:
        """Make a connector of settings that are valid; close it."""
        return kind.make(settings, self._storage(gateway, name), self.outside)

    def _storage(self, gateway: str, name: str) -> Storage:
        return Storage(self._objects, gateway, name)
