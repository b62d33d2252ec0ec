"""The command line's commands, and how wrong usage is told to programs.

With ``--json``, an unknown option or a missing argument is an error as JSON: Typer finds these
faults before a command begins, and would print them for people.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.analysis.connection import USAGE, Fault, fault_line
from lakesync.cli.commands import (
    access,
    backlog,
    client,
    connectors,
    databases,
    erase,
    flows,
    gateways,
    history,
    lake,
    rows,
    stack,
    tables,
)
from lakesync.cli.nouns import ACCESS, ACTIONS, CONNECTORS, DESTINATIONS, FLOWS
from lakesync.cli.session import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typer import Typer

_EPILOG = (
    "Exit codes: 0 success · 1 refused or failed · 2 wrong usage · 3 temporary, try again · 4 no "
    "valid token or credentials · 130 interrupted."
)

_HELP = unwrapped("""Sync rows with a LakeSync gateway, and query them in the lake.

    In a folder where `make up` has run, the local stack is detected. Elsewhere, specify the gateway
    by options or by LAKESYNC_URL, LAKESYNC_GATEWAY and LAKESYNC_TOKEN. With --stack and AWS
    credentials, commands sign a token for themselves, an administrator's where it is needed.
    """)

app = typer.Typer(
    name="lakesync",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=_EPILOG,
    help=_HELP,
)


def _named(*functions: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return {function.__name__.strip("_").replace("_", "-"): function for function in functions}


_COMMANDS: Final[Mapping[str, Callable[..., None]]] = _named(
    *(access.token, access.secret, client.push, client.pull, backlog.flush),
    *(history.query, history.history, history.diff, backlog.status, stack.doctor, stack.smoke),
    *(backlog.replay, stack.restored, tables.codegen, access.audit, stack.cost),
)
_GROUPS: Final[Mapping[str, tuple[str, Mapping[str, Callable[..., None]]]]] = {
    "schema": (
        "Declare the schemas of tables, and show them.",
        {"list": tables.list_schemas, **_named(tables.show, tables.put, tables.strict)},
    ),
    "rules": (
        "Manage which rows each client sees and may write.",
        {**_named(tables.check, tables.try_), "put": tables.put_rules, "show": tables.show_rules},
    ),
    "rows": ("Restore earlier values of rows.", _named(rows.restore)),
    "flushing": (
        "Declare how often the gateway is flushed, and from how much on.",
        _named(backlog.show, backlog.put),
    ),
    "tables": (
        "Move tables to shards, and remove tables.",
        _named(tables.list_, tables.place, tables.remove),
    ),
    "access": (
        "Revoke and restore the access of users and clients.",
        {
            "list": ACCESS.list(),
            **_named(access.show, access.revoke, access.restore, access.release),
        },
    ),
    "clients": (
        "List clients with their connections and lag; disconnect one.",
        {
            "list": access.list_clients,
            "disconnect": access.disconnect,
            "revoke": access.revoke_client,
        },
    ),
    "client": ("Move a client's file on this machine to another gateway.", _named(client.move)),
    "gateways": (
        "Export or delete a gateway; find or erase a row.",
        _named(gateways.export, gateways.find_row, erase.erase, gateways.delete),
    ),
    "stack": ("Delete a whole deployment.", _named(stack.delete)),
    "databases": (
        "Copy a gateway's tables from one database to another, and compare them.",
        {**_named(databases.copy, databases.compare), "new": databases.new_database},
    ),
    "connectors": (
        "Poll outside systems for rows of the gateway.",
        {
            "types": connectors.types,
            "new": databases.new_connector,
            "list": CONNECTORS.list(),
            **_named(connectors.show, connectors.add, connectors.test, connectors.configure),
            **_named(connectors.check, connectors.run),
            **CONNECTORS.changes(),
        },
    ),
    "actions": (
        "Run actions on outside systems: webhooks, events, executions.",
        {
            "list": ACTIONS.list(),
            "add": connectors.add_action,
            **ACTIONS.changes(),
            "run": connectors.run_action,
        },
    ),
    "lake": (
        "Show and maintain the gateway's tables in the lake.",
        _named(
            *(lake.status, lake.maintain, lake.repair, lake.rebuild, lake.views),
            *(lake.share, lake.unshare),
        ),
    ),
    "destinations": (
        "Deliver a gateway's rows to databases.",
        {
            "list": DESTINATIONS.list(),
            **_named(flows.check, flows.add),
            **DESTINATIONS.changes(replay=flows.replay),
        },
    ),
    "flows": (
        "Move rows from any source to any destination.",
        {
            "list": FLOWS.list(),
            **_named(flows.plan, flows.apply, flows.status),
            **FLOWS.changes(backfill=flows.backfill),
        },
    ),
    "quota": (
        "Manage how much a gateway may push in a second.",
        {"show": gateways.show_quota, **_named(gateways.set_, gateways.reset)},
    ),
    "checkpoint": (
        "List and build checkpoints: the rows that new clients start from.",
        {
            "list": gateways.list_,
            "show": gateways.show_checkpoint,
            "build": gateways.build,
        },
    ),
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
for _name, (_about, _commands) in _GROUPS.items():
    _group = typer.Typer(no_args_is_help=True, help=_about)
    for _verb, _command in _commands.items():
        _group.command(_verb)(_command)
    app.add_typer(_group, name=_name)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        from importlib.metadata import version

        typer.echo(version("lakesync"))
        raise typer.Exit


@app.callback()
def lakesync(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Read the options that precede a command."""


# --- wrong usage ----------------------------------------------------------------------------------


def run_for_programs(app: Typer) -> int:
    """Run the command line, print wrong usage as JSON, and return the exit code."""
    try:
        ended = app(standalone_mode=False)
    except typer.TyperException as error:
        sys.stderr.write(fault_line(_fault(error), for_programs=True) + "\n")
        return error.exit_code
    return ended if isinstance(ended, int) else 0


def _fault(error: typer.TyperException) -> Fault:
    """Return the fault: Typer's sentence in one line, and where the usage is described."""
    sentence = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "lakesync"
    return Fault(f"{sentence}; see {command} --help", "USAGE", USAGE)
