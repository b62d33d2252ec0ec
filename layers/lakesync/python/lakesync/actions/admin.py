"""Administration of action handlers: registered, listed, removed. Law X6.

Secrets are removed from the settings before anything else is stored, and are passed only to the
handler itself.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from lakesync.actions.definition import Registration, stored_registration
from lakesync.actions.registry import handler_type
from lakesync.connectors.registry import configured, secret_names
from lakesync.errors import Conflict, NotFound, ValidationFailed

if TYPE_CHECKING:
    from lakesync.actions.port import ActionHandler, SupportedAction
    from lakesync.connectors.outside import Outside
    from lakesync.ports import HandlerStore, SecretStore

HANDLERS_MAX: Final = 50
"""Action handlers of one gateway; each with secrets costs $0.40 a month."""


class ActionAdmin:
    """Registers and shows the action handlers of gateways."""

    def __init__(self, store: HandlerStore, secrets: SecretStore, outside: Outside) -> None:
        self._store = store
        self._secrets = secrets
        self._outside = outside

    def register(self, gateway: str, wanted: Registration) -> list[str]:
        """Register an action handler; return the names of its actions.

        Raises:
            ValidationFailed: the settings are invalid, or permissions name an unknown action.
            NotFound: there is no such type.
            Conflict: the name is in use, and must not be replaced.
        """
        kind = handler_type(wanted.type)
        secret = secret_names(kind)
        before = {each.name for each in self._store.handlers(gateway)}
        if wanted.name in before and not wanted.replace:
            raise _taken(wanted.name)
        if len(before | {wanted.name}) > HANDLERS_MAX:
            raise ValidationFailed(f"a gateway has at most {HANDLERS_MAX} action handlers")
        kept = self._secrets.get(secret_name(gateway, wanted.name)) if before and secret else {}
        given = {key: str(value) for key, value in wanted.configuration.items() if key in secret}
        hidden = {key: value for key, value in kept.items() if key in secret} | given
        public = {key: value for key, value in wanted.configuration.items() if key not in secret}
        with closing(made(kind.name, public, hidden, self._outside)) as handler:
            actions = [action.name for action in handler.supported_actions()]
        _check_permissions(wanted, actions)
        body = wanted.stored(public)
        if hidden:  # first: a handler without its secrets would fail for its clients
            self._secrets.put(secret_name(gateway, wanted.name), hidden)
        if not self._store.add(gateway, wanted.name, body, replace=wanted.replace):
            raise _taken(wanted.name)
        return actions

    def all(self, gateway: str) -> list[dict[str, Any]]:
        """Return a gateway's action handlers, without secrets."""
        return [
            stored_registration(each.definition).model_dump(
                mode="json", by_alias=True, exclude={"replace"}, exclude_defaults=True
            )
            for each in self._store.handlers(gateway)
        ]

    def remove(self, gateway: str, name: str) -> None:
        """Remove an action handler with its secrets; actions that it ran are not undone.

        Raises:
            NotFound: there is none of that name.
        """
        if not self._store.remove(gateway, name):
            raise NotFound(f"there is no action handler {name!r}; list them", field="name")
        self._secrets.remove(secret_name(gateway, name))

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway. Safe to repeat."""
        for each in self._store.handlers(gateway):
            self._secrets.remove(secret_name(gateway, each.name))
            self._store.remove(gateway, each.name)


def secret_name(gateway: str, name: str) -> str:
    """Return the name of an action handler's secret, below the stack's prefix."""
    return f"{gateway}/{name}"


def made(
    type_name: str, public: dict[str, Any], hidden: dict[str, str], outside: Outside
) -> ActionHandler:
    """Make an action handler of its settings and its secrets.

    Raises:
        ValidationFailed: they are invalid, or the operator does not allow them.
        NotFound: there is no such type.
    """
    kind = handler_type(type_name)
    return kind.make(configured(kind, {**public, **hidden}), outside)


def supported(handler: ActionHandler) -> dict[str, SupportedAction]:
    """Return what a handler can do, by name."""
    return {action.name: action for action in handler.supported_actions()}


def _check_permissions(wanted: Registration, actions: list[str]) -> None:
    for place, permission in enumerate(wanted.allow):
        if unknown := sorted(set(permission.actions) - set(actions)):
            raise ValidationFailed(
                f"it has no action {unknown[0][:64]!r}; it has {', '.join(actions)}",
                field=f"allow[{place}].actions",
            )


def _taken(name: str) -> Conflict:
    return Conflict(f"there is an action handler {name} already; say replace, or choose another")
