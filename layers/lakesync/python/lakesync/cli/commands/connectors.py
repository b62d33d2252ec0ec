"""`lakesync connectors` and `actions`: outside systems that are polled, or operated by clients."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from lakesync.cli.input_output import UsageFault, read_json
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural
from lakesync.errors import (
    ActionFailed,
    ActionInvalid,
    AdapterFailed,
    AdapterRefused,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# --- listings -------------------------------------------------------------------------------------


def settings_of(schema: dict[str, Any]) -> str:
    """List a type's settings; an asterisk marks a required one."""
    needed = set(schema.get("required", ()))
    return ", ".join(f"{key}*" if key in needed else key for key in schema.get("properties", {}))


def state_of(each: dict[str, Any]) -> str:
    """Describe what a connector is doing now."""
    if not each["isPolling"]:
        return "paused"
    if "waitS" in each:
        return f"waits {each['waitS']} s"
    return "reads" if each["isReading"] else f"every {each['everyMinutes']} min"


def lag_of(each: dict[str, Any]) -> str:
    """Describe how far a connector lags behind its source."""
    return f"{each['lagS']} s" if "lagS" in each else "never polled"


def change_of(change: dict[str, Any]) -> str:
    """Describe a change of a source's schema."""
    column = f".{change['column']}" if change["column"] else ""
    at = f"{datetime.fromtimestamp(change['atMs'] / 1000, UTC):%Y-%m-%d %H:%M}"
    return f"{change['severity']}: {change['table']}{column}: {change['change']} ({at})"


# --- connectors -----------------------------------------------------------------------------------


POLL_SEEN_S_MAX: Final = 30
"""How long `run --follow` waits for a poll to start."""
_LOOK_S: Final = 1.0
_NAME = typer.Argument(help="The connector's name.")
_FILE = typer.Argument(help="A JSON file with type, name and configuration; - for standard input.")
_FOLLOW = typer.Option("--follow", help="Show progress until the poll ends.")
_SCHEMA = typer.Option(
    "--schema", help="Register the tables' schemas first, with the types that the source has."
)
_NO_CHECK = typer.Option("--no-check", help="Register without asking the source first.")


@command
def types(session: Session) -> None:
    """List the connector types and their settings. An asterisk marks a required setting.

    Example:
      lakesync connectors types
    """
    listed: Any = session.ask("GET", "/connectors/types")
    if session.out.json_lines:
        for each in listed:
            session.out.json(each)
        return
    rows = [
        (each["type"], each["title"], each.get("error") or settings_of(each["configuration"]))
        for each in listed
    ]
    session.out.table(("type", "for", "settings"), rows, title="Types of connectors.")


@command
def list_(session: Session) -> None:
    """List the gateway's connectors, each with its state, its lag and its last error.

    Below are the latest changes of their sources' schemas, until a reset.

    Example:
      lakesync connectors list
    """
    listed: Any = session.ask("GET", _path(session))
    must_exist(session, listed)
    if session.out.json_lines:
        for each in listed:
            session.out.json(each)
        return
    rows = [
        (each["name"], each["type"], state_of(each), lag_of(each), each["rows"],
         each["deadLetterCount"], each.get("lastError", {}).get("error", ""))
        for each in listed
    ]  # fmt: skip
    columns = ("name", "type", "state", "behind", "rows", "dead letters", "last error")
    empty = "No connectors; register one: lakesync connectors add shop.json"
    session.out.table(columns, rows, title="Connectors.", empty=empty)
    for each in listed:
        for change in each.get("schemaChanges", ()):
            session.out.note(f"{each['name']}: {change_of(change)}")


@command
def show(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Show a connector: its settings without secrets, its last error, its first dead letters.

    Example:
      lakesync connectors show shop
    """
    answer = session.ask("GET", _path(session, name))
    session.out.answer(answer, json.dumps(answer, indent=2, ensure_ascii=False))


@command
def add(
    session: Session,
    *,
    file: Annotated[str, _FILE],
    no_check: Annotated[bool, _NO_CHECK] = False,
    schema: Annotated[bool, _SCHEMA] = False,
) -> None:
    """Register a connector and start polling its source.

    The source is asked first: nothing is registered unless it answers. A name in use is refused.
    Secrets in the file are stored as secrets and never shown again. With --schema, each table has
    typed columns in the gateway, in the lake and in destinations; without a schema columns of
    destinations are JSON text. A schema that exists is extended.

    Example:
      lakesync connectors add shop.json
      lakesync connectors add shop.json --schema
    """
    if schema and no_check:
        raise UsageFault("--schema asks the source, which --no-check does not: give one of them")
    body = _read(file)
    if schema:
        _register_schemas(session, body)
    answer = session.ask("POST", _path(session), body | ({"check": False} if no_check else {}))
    session.out.answer(
        answer, f"registered: {answer['name']}. {answer.get('message', '')}".rstrip()
    )


@command
def test(session: Session, *, file: Annotated[str, _FILE]) -> None:
    """Check the settings in a file, and ask their source; nothing is registered.

    Example:
      lakesync connectors test shop.json
    """
    answer = session.ask("POST", f"{_path(session)}?dryRun=true", _read(file))
    tables = f"It would write to {', '.join(answer['tables'])}; nothing was registered."
    session.out.answer(answer, f"{answer['message']} {tables}")


@command
def configure(
    session: Session, *, name: Annotated[str, _NAME], file: Annotated[str, _FILE]
) -> None:
    """Replace a connector's settings. Secrets that the file omits are kept; null removes one.

    Example:
      lakesync connectors configure shop settings.json
    """
    body = _read(file)
    settings = body.get("configuration", body)
    answer = _do(session, name, "configure", configuration=settings)
    session.out.answer(answer, f"configured: {name}. {answer.get('message', '')}".rstrip())


@command
def check(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Ask a connector's source whether its settings are right; nothing is changed.

    Example:
      lakesync connectors check shop
    """
    answer = _do(session, name, "check")
    session.out.answer(answer, answer.get("message", "the source answers"))


@command
def run(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    follow: Annotated[bool, _FOLLOW] = False,
) -> None:
    """Start a poll of a connector now, without waiting for its interval.

    With --follow it exits with 1 if the poll reports an error. A paused connector is refused.

    Example:
      lakesync connectors run shop --follow
    """
    before = session.ask("GET", _path(session, name))
    answer = _do(session, name, "run")
    if not follow:
        session.out.answer(answer, f"started: {name}; see `lakesync connectors list`")
        return
    after = _followed(session, name, before, time.monotonic)
    rows = after["rows"] - before["rows"]
    letters = plural(after["deadLetterCount"], "dead letter")
    session.out.answer(after, f"done: {name}, {plural(rows, 'row')}, {letters}")
    if "lastError" in after:
        raise AdapterRefused(f"not all could be read: {after['lastError']['error']}")


@command
def pause(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Pause polling of a connector until it is resumed. Safe to repeat.

    Example:
      lakesync connectors pause shop
    """
    session.out.answer(_do(session, name, "pause"), f"paused: {name}")


@command
def resume(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Resume polling of a paused connector. Safe to repeat.

    Example:
      lakesync connectors resume shop
    """
    session.out.answer(_do(session, name, "resume"), f"resumed: {name}")


@command
def reset(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Reset a connector, so that its next poll reads everything at the source again.

    Its position, its dead letters and what it created at the source are discarded. Safe to repeat.

    Example:
      lakesync connectors reset shop
    """
    session.out.answer(_do(session, name, "reset"), f"reset: {name}; next poll reads everything")


@command
def remove(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Remove a connector, its secrets, and what it created at its source. Its rows stay.

    Example:
      lakesync connectors remove shop
    """
    answer = session.ask("DELETE", _path(session, name))
    session.out.answer(answer, f"removed: {name}. {answer.get('message', '')}".rstrip(". "))


def _register_schemas(session: Session, body: dict[str, Any]) -> None:
    """Register the schemas of a connector's tables before it is registered."""
    tested = session.ask("POST", f"{_path(session)}?dryRun=true&schemas=true", body)
    for schema in tested["schemas"]:
        saved = session.ask("POST", f"/admin/schema/{session.connection.gateway}", schema)
        columns = plural(len(schema["columns"]), "column")
        session.out.note(f"{schema['table']}: schema version {saved['version']}, {columns}")
    for table in sorted({*tested["tables"]} - {schema["table"] for schema in tested["schemas"]}):
        session.out.note(f"{table}: the source does not tell its columns; it has no schema")


def _followed(
    session: Session, name: str, before: dict[str, Any], seconds: Callable[[], float]
) -> dict[str, Any]:
    """Show a poll's progress until it ends.

    Raises:
        AdapterFailed: no poll started.
        AdapterRefused: the poll stopped with an error.
    """
    begun, rows = seconds(), before["rows"]
    while True:
        now = session.ask("GET", _path(session, name))
        if now["polls"] > before["polls"]:
            return now
        if now["rows"] > rows:
            rows = now["rows"]
            session.out.note(plural(rows - before["rows"], "row"))
        fault = now.get("lastError", {})
        if fault.get("atMs", 0) > before.get("lastError", {}).get("atMs", 0):
            raise AdapterRefused(f"the poll stopped: {fault['error']}")
        if not now["isReading"] and rows == before["rows"] and seconds() - begun > POLL_SEEN_S_MAX:
            raise AdapterFailed(f"no poll began in {POLL_SEEN_S_MAX} s: see the stack's alarms")
        time.sleep(_LOOK_S)


def _do(session: Session, name: str, action: str, **more: object) -> dict[str, Any]:
    return session.ask("POST", _path(session, name), {"do": action, **more})


def _path(session: Session, name: str = "") -> str:
    path = f"/admin/connectors/{session.connection.gateway}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _read(file: str) -> dict[str, Any]:
    body = read_json(file)
    if not isinstance(body, dict):
        raise ValidationFailed(f"{file} must hold an object")
    return body


# --- actions --------------------------------------------------------------------------------------


_HANDLER_FILE = typer.Argument(help="The action handler, a JSON file; - for standard input.")
_HANDLER_NAME = typer.Argument(help="The action handler's name.")
_PAUSE_S: Final = 2.0


@command
def list_actions(session: Session) -> None:
    """List the action handlers: the actions of each, and who may run them; without secrets.

    Example:
      lakesync actions list
    """
    handlers = session.ask("GET", _actions_path(session))["handlers"]
    must_exist(session, handlers)
    gateway = session.connection.gateway
    actions = session.ask("GET", f"/sync/{gateway}/actions")["connectors"]
    if session.out.json_lines:
        for each in handlers:
            names = [action["actionType"] for action in actions.get(each["name"], ())]
            session.out.json(each | {"actions": names})
        return
    rows = [
        (
            each["name"],
            each["type"],
            ", ".join(action["actionType"] for action in actions.get(each["name"], ())),
            plural(len(each.get("allow", ())), "permission") if each.get("allow") else "nobody",
            f"{each.get('perMinute', 60)} a minute",
        )
        for each in handlers
    ]
    columns = ("name", "type", "actions", "who, beside administrators", "each client")
    empty = "No action handlers; register one: lakesync actions add shipping.json"
    session.out.table(columns, rows, title="Action handlers.", empty=empty)


@command
def add_action(session: Session, *, file: Annotated[str, _HANDLER_FILE]) -> None:
    """Register an action handler. With "replace": true it replaces the handler of that name.

    The file contains {"name": "shipping", "type": "webhook", "configuration": {…}, "allow": [{}]};
    see docs/actions.md. Without "allow", only administrators may run its actions. Secrets that a
    replacement does not name are kept.

    Example:
      lakesync actions add shipping.json
    """
    answer = session.ask("POST", _actions_path(session), read_json(file))
    session.out.answer(
        answer, f"registered: {answer['name']}, which can {', '.join(answer['actions'])}"
    )


@command
def remove_action(session: Session, *, name: Annotated[str, _HANDLER_NAME]) -> None:
    """Remove an action handler and its secrets. Actions that it has run are not undone.

    Example:
      lakesync actions remove shipping
    """
    answer = session.ask("DELETE", f"{_actions_path(session)}/{quote(name, safe='')}")
    session.out.answer(answer, f"removed: {name}")


@command
def run_action(
    session: Session,
    *,
    name: Annotated[str, _HANDLER_NAME],
    action: Annotated[str, typer.Argument(help="The action to run.")],
    params: Annotated[str, typer.Argument(help="The action's parameters, a JSON object.")] = "{}",
    action_id: Annotated[
        str, typer.Option("--id", help="The id of an earlier action, to get its result.")
    ] = "",
    wait: Annotated[float, typer.Option(help="How many seconds to keep retrying.")] = 30.0,
) -> None:
    """Run an action once and print its result.

    A retryable failure is retried under the same id, so the action runs at most once. The id is
    printed first: if the command is interrupted, repeat it with --id to get the result.

    Example:
      lakesync actions run shipping ship '{"order": 7}'
    """
    try:
        read = json.loads(params)
    except ValueError as exc:
        raise UsageFault(f"the parameters are not JSON: {exc}") from exc
    own = action_id or uuid.uuid4().hex
    client, gateway = session.client_id, session.connection.gateway
    asked = {"actionId": own, "connector": name, "actionType": action, "params": read}
    body = {"clientId": client, "actions": [asked]}
    ends = time.monotonic() + wait
    session.out.note(f"action {own}")
    while True:
        (result,) = session.ask("POST", f"/sync/{gateway}/action", body)["results"]
        if "code" not in result:
            session.out.answer(result, f"done: {json.dumps(result['data'], ensure_ascii=False)}")
            return
        if not result["retryable"] or time.monotonic() + _PAUSE_S > ends:
            raise _failure(result)
        session.out.note(f"{result['message']} ({result['code']}); retrying")
        time.sleep(_PAUSE_S)


def _failure(result: dict[str, Any]) -> ActionFailed | ActionInvalid:
    answer = f"{result['message']} ({result['code']})"
    if result["retryable"]:
        return ActionFailed(f"{answer}; ask again: --id {result['actionId']}")
    return ActionInvalid(answer) if "VALIDATION" in result["code"] else ActionFailed(answer)


def _actions_path(session: Session) -> str:
    return f"/admin/actions/{session.connection.gateway}"
