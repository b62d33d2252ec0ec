"""`lakesync actions`: operations on outside systems that clients may run."""

from __future__ import annotations

import json
import time
import uuid
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import ActionFailed, ActionInvalid

_FILE = typer.Argument(help="The action handler, a JSON file; - for standard input.")
_NAME = typer.Argument(help="The action handler's name.")
_PAUSE_S: Final = 2.0


@command
def list_(session: Session) -> None:
    """List the action handlers: the actions of each, and who may run them; without secrets.

    Example:
      lakesync actions list
    """
    handlers = session.ask("GET", _path(session))["handlers"]
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
def add(session: Session, *, file: Annotated[str, _FILE]) -> None:
    """Register an action handler. With "replace": true it replaces the handler of that name.

    The file contains {"name": "shipping", "type": "webhook", "configuration": {…}, "allow": [{}]};
    see docs/actions.md. Without "allow", only administrators may run its actions. Secrets that a
    replacement does not name are kept.

    Example:
      lakesync actions add shipping.json
    """
    answer = session.ask("POST", _path(session), read_json(file))
    session.out.answer(
        answer, f"registered: {answer['name']}, which can {', '.join(answer['actions'])}"
    )


@command
def remove(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Remove an action handler and its secrets. Actions that it has run are not undone.

    Example:
      lakesync actions remove shipping
    """
    answer = session.ask("DELETE", f"{_path(session)}/{quote(name, safe='')}")
    session.out.answer(answer, f"removed: {name}")


@command
def run(
    session: Session,
    *,
    name: Annotated[str, _NAME],
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


def _path(session: Session) -> str:
    return f"/admin/actions/{session.connection.gateway}"
