"""What administrators declare for a gateway by name, as one table, and the verbs that are alike.

A noun has a route, ``/admin/ROUTE/GATEWAY``, columns that its list shows, and verbs that change one
thing by its name. Commands that are really different are functions in `lakesync.cli.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lakesync.analysis.past import instant
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lakesync.cli.input_output import Cell

REMOVE: Final = "remove"


class Verb(NamedTuple):
    """A change of one thing by its name."""

    help: str
    said: str
    """What is printed of it; ``{name}`` and the answer's ``{message}`` are filled in."""
    example: str = ""
    """The name in its example, if not the noun's."""


@dataclass(frozen=True)
class Noun:
    """What is declared by name.

    Attributes:
        route: the route, and the commands' group.
        one: one of it, in words.
        help: of its list.
        columns: of its list.
        title: of its list.
        empty: what the list says if there is nothing.
        key: where the list is in the route's answer; empty if it is the answer.
        complete: adds to what is listed what other routes know.
        remarks: what the list notes of the route's answer.
        left: what a removal notes of its answer.
        example: a name.
        verbs: by the words that the route knows too.
        is_body: whether a verb is said in the body of a request, and not in its path.
    """

    route: str
    one: str
    help: str
    columns: Mapping[str, Cell]
    title: str
    empty: str = ""
    key: str = ""
    complete: Callable[[Session, Any], Any] = lambda _, listed: listed
    remarks: Callable[[Any], Iterable[str]] = lambda _: ()
    left: Callable[[Any], Iterable[str]] = lambda _: ()
    example: str = ""
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    is_body: bool = False

    def declared(self, session: Session) -> Any:
        """Return the route's answer, of a gateway that exists, and what it lists."""
        answer: Any = session.admin("GET", self.route)
        listed = answer[self.key] if self.key else answer
        must_exist(session, listed)
        return answer, self.complete(session, listed)

    def show(self, session: Session, listed: Iterable[dict[str, Any]]) -> bool:
        """Print some of what is declared; return whether people read it."""
        return session.out.listing(listed, self.columns, self.title, empty=self.empty)

    def do(self, session: Session, verb: str, name: str, **more: object) -> dict[str, Any]:
        if verb == REMOVE:
            return session.admin("DELETE", self.route, name)
        if self.is_body:
            return session.admin("POST", self.route, name, body={"do": verb, **more})
        return session.admin("POST", self.route, name, verb, body=more)

    def list(self) -> Callable[..., None]:
        def list_(session: Session) -> None:
            answer, listed = self.declared(session)
            if self.show(session, listed):
                for remark in self.remarks(answer):
                    session.out.note(remark)

        list_.__doc__ = _help(self.help, f"{self.route} list")
        return command(list_)

    def changes(self, **own: Callable[..., None]) -> dict[str, Callable[..., None]]:
        """Return the commands of the verbs; those of its own stand before the removal."""
        made = {verb: self._change(verb) for verb in self.verbs}
        removal = made.pop(REMOVE)
        return {**made, **own, REMOVE: removal}

    def _change(self, verb: str) -> Callable[..., None]:
        text, said, example = self.verbs[verb]

        def change(session: Session, *, name: str) -> None:
            answer = self.do(session, verb, name)
            sentence = said.format(name=name, message=answer.get("message", ""))
            session.out.answer(answer, sentence.rstrip(". "))
            for remark in self.left(answer) if verb == REMOVE else ():
                session.out.note(remark)

        help_ = f"The {self.one}'s name."
        change.__annotations__["name"] = Annotated[str, typer.Argument(help=help_)]
        change.__doc__ = _help(text, f"{self.route} {verb} {example or self.example}")
        return command(change)


def _help(text: str, example: str) -> str:
    return f"{text}\n\nExample:\n  lakesync {example}"


# --- connectors -----------------------------------------------------------------------------------


def _state(each: dict[str, Any]) -> str:
    if not each["isPolling"]:
        return "paused"
    if "waitS" in each:
        return f"waits {each['waitS']} s"
    return "reads" if each["isReading"] else f"every {each['everyMinutes']} min"


def _source_changes(listed: list[dict[str, Any]]) -> Iterator[str]:
    for each in listed:
        for change in each.get("schemaChanges", ()):
            column = f".{change['column']}" if change["column"] else ""
            at = f"{datetime.fromtimestamp(change['atMs'] / 1000, UTC):%Y-%m-%d %H:%M}"
            what = f"{change['severity']}: {change['table']}{column}: {change['change']}"
            yield f"{each['name']}: {what} ({at})"


CONNECTORS: Final = Noun(
    "connectors",
    "connector",
    "List the gateway's connectors, each with its state, its lag and its last error.\n\n"
    "Below are the latest changes of their sources' schemas, until a reset.",
    {
        "name": "name",
        "type": "type",
        "state": _state,
        "behind": lambda each: f"{each['lagS']} s" if "lagS" in each else "never polled",
        "rows": "rows",
        "dead letters": "deadLetterCount",
        "last error": lambda each: each.get("lastError", {}).get("error", ""),
    },
    "Connectors.",
    "No connectors; register one: lakesync connectors add shop.json",
    remarks=_source_changes,
    example="shop",
    verbs={
        "reset": Verb(
            "Reset a connector, so that its next poll reads everything at the source again.\n\n"
            "Its position, its dead letters and what it created at the source are discarded. Safe "
            "to repeat.",
            "reset: {name}; next poll reads everything",
        ),
        "pause": Verb(
            "Pause polling of a connector until it is resumed. Safe to repeat.", "paused: {name}"
        ),
        "resume": Verb("Resume polling of a paused connector. Safe to repeat.", "resumed: {name}"),
        REMOVE: Verb(
            "Remove a connector, its secrets, and what it created at its source. Its rows stay.",
            "removed: {name}. {message}",
        ),
    },
    is_body=True,
)


# --- flows ----------------------------------------------------------------------------------------


def end_of(end: Any) -> str:
    if not isinstance(end, dict):
        return str(end)
    if "connector" in end:
        return f"connector {end['connector']}"
    return f"{end['database']} {end['secret']}"


def errors_of(flows: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (f"{one['name']}: {one['lastError']['error']}" for one in flows if "lastError" in one)


FLOWS: Final = Noun(
    "flows",
    "flow",
    "List the flows with their source, destination, state, lag, rows and dead letters.\n\n"
    "Declared destinations are listed too: they are flows from the gateway, fed by its flushes.",
    {
        "name": "name",
        "from": lambda each: end_of(each["source"]),
        "to": lambda each: end_of(each["destination"]),
        "state": "state",
        "lag": lambda each: f"{each['lagS']} s" if "lagS" in each else "",
        "rows": lambda each: each.get("rows", ""),
        "dead letters": "deadLetters",
    },
    "Flows.",
    "No flows; declare some: lakesync flows apply flows.yaml",
    key="flows",
    remarks=lambda answer: errors_of(answer["flows"]),
    example="orders-out",
    verbs={
        "run": Verb(
            "Start a poll of a flow's source now, without waiting for its schedule.",
            "started: {name}; `lakesync flows status {name}` shows its progress",
            "tickets",
        ),
        "pause": Verb(
            "Pause a flow. New data waits, and nothing is lost. Safe to repeat.", "paused: {name}"
        ),
        "resume": Verb(
            "Resume a flow from where it was paused. Safe to repeat.", "resumed: {name}"
        ),
        REMOVE: Verb(
            "Remove a flow and the secrets of its source. Rows that it moved stay at the "
            "destination.\n\nWhat it created at its source is removed too; anything that could not "
            "be removed is reported.",
            "removed: {name}. {message}",
            "tickets",
        ),
    },
)


# --- destinations ---------------------------------------------------------------------------------


def _archived(destination: dict[str, Any]) -> str:
    tables = destination["tablesDelivered"] if "archive" in destination else []
    marks = [int(table["archived"]) for table in tables if table["table"]]
    if not marks:
        return ""
    return f"{instant(min(marks)):%Y-%m-%d %H:%M}" if all(marks) else "nothing yet"


def _without_lake(answer: dict[str, Any]) -> Iterator[str]:
    if tables := answer.get("withoutLake"):
        named = "no table goes" if "*" in tables else f"these do not go: {', '.join(tables)}"
        yield f"to the lake {named}; a destination is declared in its place, or was"


def _deliveries(answer: dict[str, Any]) -> Iterator[str]:
    yield from _without_lake(answer)
    for each in answer["destinations"]:
        for table in each["tablesDelivered"]:
            if table["error"]:
                yield f"{each['name']}: {table['table']}: {table['error']}"
        for claim in each["setAside"]:
            yield f"{each['name']}: set aside: {claim['claim']}: {claim['reason']}"
        if each["deadLetters"] or each["setAside"]:
            yield f"fix the cause, then: lakesync destinations replay {each['name']}"


DESTINATIONS: Final = Noun(
    "destinations",
    "destination",
    "List the destinations with their state, lag, waiting batches and refused rows.\n\n"
    '"archived to" is the time up to which the archive has the history of every table.',
    {
        "name": "name",
        "kind": "kind",
        "state": "state",
        "lag": lambda each: f"{each['lagMs'] / 1000:.0f} s" if each["waiting"] else "",
        "waiting": "waiting",
        "filling": "filling",
        "dead letters": "deadLetters",
        "archived to": _archived,
    },
    "Destinations.",
    "No destinations; declare one: lakesync destinations add warehouse warehouse.json",
    key="destinations",
    remarks=_deliveries,
    left=_without_lake,
    example="warehouse",
    verbs={
        "pause": Verb(
            "Pause delivery to a destination. New data waits, and nothing is lost. Safe to repeat.",
            "paused: {name}",
        ),
        "resume": Verb(
            "Resume delivery to a destination from where it was paused. Safe to repeat.",
            "resumed: {name}",
        ),
        "backfill": Verb(
            "Fill a destination again from the gateway's rows, while delivery continues.\n\n"
            "It restores rows that were removed at the destination. Safe to repeat.",
            "{name} is being filled",
        ),
        REMOVE: Verb(
            "Stop delivering to a destination and remove its declaration. Its tables are not "
            "changed.",
            "removed: {name}; its tables are not changed",
        ),
    },
)


# --- action handlers, access ----------------------------------------------------------------------


def _with_actions(session: Session, handlers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    path = f"/sync/{session.connection.gateway}/actions"
    actions = session.ask("GET", path)["connectors"]
    return [
        each | {"actions": [one["actionType"] for one in actions.get(each["name"], ())]}
        for each in handlers
    ]


def _allowed(handler: dict[str, Any]) -> str:
    return plural(len(handler["allow"]), "permission") if handler.get("allow") else "nobody"


ACTIONS: Final = Noun(
    "actions",
    "action handler",
    "List the action handlers: the actions of each, and who may run them; without secrets.",
    {
        "name": "name",
        "type": "type",
        "actions": lambda each: ", ".join(each["actions"]),
        "who, beside administrators": _allowed,
        "each client": lambda each: f"{each.get('perMinute', 60)} a minute",
    },
    "Action handlers.",
    "No action handlers; register one: lakesync actions add shipping.json",
    key="handlers",
    complete=_with_actions,
    example="shipping",
    verbs={
        REMOVE: Verb(
            "Remove an action handler and its secrets. Actions that it has run are not undone.",
            "removed: {name}",
        ),
    },
)


class Kind(StrEnum):
    """What can be revoked."""

    USER = "user"
    CLIENT = "client"


def revoked_kind(revoked: dict[str, Any]) -> Kind:
    """Return what a revocation is of; it has the name under this key."""
    return Kind.USER if Kind.USER in revoked else Kind.CLIENT


ACCESS: Final = Noun(
    "access",
    "revocation",
    "List the revoked users and clients: since when, and by whom.",
    {
        "kind": revoked_kind,
        "name": lambda each: each[revoked_kind(each)],
        "since": "at",
        "by": "by",
    },
    "Revoked.",
    key="revoked",
)
