"""`lakesync connectors` and `actions`: outside systems that are polled, or operated by clients."""

from __future__ import annotations

import json
import time
import uuid
from typing import Annotated, Any, Final

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.cli.input_output import Cell, read_json
from lakesync.cli.nouns import CONNECTORS
from lakesync.cli.session import Session, command
from lakesync.core.wording import plural
from lakesync.errors import (
    ActionFailed,
    ActionInvalid,
    AdapterFailed,
    AdapterRefused,
    ValidationFailed,
)

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
    columns: dict[str, Cell] = {"type": "type", "for": "title", "settings": _settings}
    session.out.listing(listed, columns, "Types of connectors.")


def _settings(kind: dict[str, Any]) -> str:
    """List a type's settings; an asterisk marks a required one."""
    if "error" in kind:
        return str(kind["error"])
    schema = kind["configuration"]
    needed = set(schema.get("required", ()))
    return ", ".join(f"{key}*" if key in needed else key for key in schema.get("properties", {}))


@command
def show(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Show a connector: its settings without secrets, its last error, its first dead letters.

    Example:
      lakesync connectors show shop
    """
    session.out.document(_shown(session, name))


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
    body |= {"check": False} if no_check else {}
    answer = session.admin("POST", "connectors", body=body)
    _tell(session, "registered", answer["name"], answer)


@command
def test(session: Session, *, file: Annotated[str, _FILE]) -> None:
    """Check the settings in a file, and ask their source; nothing is registered.

    Example:
      lakesync connectors test shop.json
    """
    answer = session.admin("POST", "connectors", body=_read(file), dryRun=True)
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
    answer = CONNECTORS.do(session, "configure", name, configuration=settings)
    _tell(session, "configured", name, answer)


@command
def check(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Ask a connector's source whether its settings are right; nothing is changed.

    Example:
      lakesync connectors check shop
    """
    answer = CONNECTORS.do(session, "check", name)
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
    before = _shown(session, name)
    answer = CONNECTORS.do(session, "run", name)
    if not follow:
        session.out.answer(answer, f"started: {name}; see `lakesync connectors list`")
        return
    after = _followed(session, name, before)
    rows = after["rows"] - before["rows"]
    letters = plural(after["deadLetterCount"], "dead letter")
    session.out.answer(after, f"done: {name}, {plural(rows, 'row')}, {letters}")
    if "lastError" in after:
        raise AdapterRefused(f"not all could be read: {after['lastError']['error']}")


def _register_schemas(session: Session, body: dict[str, Any]) -> None:
    tested = session.admin("POST", "connectors", body=body, dryRun=True, schemas=True)
    for schema in tested["schemas"]:
        saved = session.admin("POST", "schema", body=schema)
        columns = plural(len(schema["columns"]), "column")
        session.out.note(f"{schema['table']}: schema version {saved['version']}, {columns}")
    for table in sorted({*tested["tables"]} - {schema["table"] for schema in tested["schemas"]}):
        session.out.note(f"{table}: the source does not tell its columns; it has no schema")


def _followed(session: Session, name: str, before: dict[str, Any]) -> dict[str, Any]:
    begun, rows = time.monotonic(), before["rows"]
    while True:
        now = _shown(session, name)
        if now["polls"] > before["polls"]:
            return now
        if now["rows"] > rows:
            rows = now["rows"]
            session.out.note(plural(rows - before["rows"], "row"))
        fault = now.get("lastError", {})
        if fault.get("atMs", 0) > before.get("lastError", {}).get("atMs", 0):
            raise AdapterRefused(f"the poll stopped: {fault['error']}")
        waited_s = time.monotonic() - begun
        if not now["isReading"] and rows == before["rows"] and waited_s > POLL_SEEN_S_MAX:
            raise AdapterFailed(f"no poll began in {POLL_SEEN_S_MAX} s: see the stack's alarms")
        time.sleep(_LOOK_S)


def _shown(session: Session, name: str) -> dict[str, Any]:
    return session.admin("GET", "connectors", name)


def _tell(session: Session, done: str, name: str, answer: dict[str, Any]) -> None:
    session.out.answer(answer, f"{done}: {name}. {answer.get('message', '')}".rstrip())


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
def add_action(session: Session, *, file: Annotated[str, _HANDLER_FILE]) -> None:
    """Register an action handler. With "replace": true it replaces the handler of that name.

    The file contains {"name": "shipping", "type": "webhook", "configuration": {…}, "allow": [{}]};
    see docs/actions.md. Without "allow", only administrators may run its actions. Secrets that a
    replacement does not name are kept.

    Example:
      lakesync actions add shipping.json
    """
    answer = session.admin("POST", "actions", body=read_json(file))
    session.out.answer(
        answer, f"registered: {answer['name']}, which can {', '.join(answer['actions'])}"
    )


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
    path = f"/sync/{session.connection.gateway}/action"
    asked = {"actionId": own, "connector": name, "actionType": action, "params": read}
    body = {"clientId": session.client_id, "actions": [asked]}
    ends = time.monotonic() + wait
    session.out.note(f"action {own}")
    while True:
        (result,) = session.ask("POST", path, body)["results"]
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
