"""The command line's commands, and how wrong usage is told to programs.

With ``--json``, an unknown option or a missing argument is an error as JSON: Typer finds these
faults before a command begins, and would print them for people.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.commands.access import (
    audit,
    disconnect,
    list_clients,
    release,
    restore,
    revoke,
    revoke_client,
    secret,
    token,
)
from lakesync.cli.commands.access import list_ as list_access
from lakesync.cli.commands.access import show as show_access
from lakesync.cli.commands.backlog import flush, replay, status
from lakesync.cli.commands.backlog import put as put_flushing
from lakesync.cli.commands.backlog import show as show_flushing
from lakesync.cli.commands.client import move, pull, push
from lakesync.cli.commands.connectors import add as add_connector
from lakesync.cli.commands.connectors import (
    add_action,
    configure,
    list_actions,
    pause,
    remove,
    remove_action,
    resume,
    run_action,
)
from lakesync.cli.commands.connectors import check as check_connector
from lakesync.cli.commands.connectors import list_ as list_connectors
from lakesync.cli.commands.connectors import reset as reset_connector
from lakesync.cli.commands.connectors import run as run_connector
from lakesync.cli.commands.connectors import show as show_connector
from lakesync.cli.commands.connectors import test as test_connector
from lakesync.cli.commands.connectors import types as connector_types
from lakesync.cli.commands.databases import compare as compare_databases
from lakesync.cli.commands.databases import copy as copy_databases
from lakesync.cli.commands.databases import new_connector, new_database
from lakesync.cli.commands.erase import erase
from lakesync.cli.commands.flows import add as add_destination
from lakesync.cli.commands.flows import apply as apply_flows
from lakesync.cli.commands.flows import backfill as backfill_flow
from lakesync.cli.commands.flows import (
    backfill_destination,
    list_destinations,
    pause_destination,
    remove_destination,
    resume_destination,
)
from lakesync.cli.commands.flows import check as check_destination
from lakesync.cli.commands.flows import list_ as list_flows
from lakesync.cli.commands.flows import pause as pause_flow
from lakesync.cli.commands.flows import plan as plan_flows
from lakesync.cli.commands.flows import remove as remove_flow
from lakesync.cli.commands.flows import replay as replay_destination
from lakesync.cli.commands.flows import resume as resume_flow
from lakesync.cli.commands.flows import run as run_flow
from lakesync.cli.commands.flows import status as status_flow
from lakesync.cli.commands.gateways import build, export, find_row, show_checkpoint, show_quota
from lakesync.cli.commands.gateways import delete as delete_gateway
from lakesync.cli.commands.gateways import list_ as list_checkpoints
from lakesync.cli.commands.gateways import reset as reset_quota
from lakesync.cli.commands.gateways import set_ as set_quota
from lakesync.cli.commands.history import diff, history, query
from lakesync.cli.commands.lake import maintain, rebuild, repair, share, unshare, views
from lakesync.cli.commands.lake import status as lake_status
from lakesync.cli.commands.rows import restore as restore_rows
from lakesync.cli.commands.stack import cost, doctor, restored, smoke
from lakesync.cli.commands.stack import delete as delete_stack
from lakesync.cli.commands.tables import (
    check,
    codegen,
    list_schemas,
    place,
    put,
    put_rules,
    show,
    show_rules,
    strict,
    try_,
)
from lakesync.cli.commands.tables import list_ as list_tables
from lakesync.cli.commands.tables import remove as remove_table
from lakesync.cli.input_output import USAGE, Fault, fault_line
from lakesync.cli.session import unwrapped

if TYPE_CHECKING:
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
schema = typer.Typer(no_args_is_help=True, help="Declare the schemas of tables, and show them.")
_COMMANDS = (
    *(token, secret, push, pull, flush, query, history, diff),
    *(status, doctor, smoke, replay, restored, codegen, audit, cost),
)
for _command in _COMMANDS:
    app.command()(_command)
schema.command("list")(list_schemas)
schema.command()(show)
schema.command()(put)
schema.command()(strict)
app.add_typer(schema, name="schema")
rules = typer.Typer(no_args_is_help=True, help="Manage which rows each client sees and may write.")
rules.command()(check)
rules.command("try")(try_)
rules.command("put")(put_rules)
rules.command("show")(show_rules)
app.add_typer(rules, name="rules")
rows = typer.Typer(no_args_is_help=True, help="Restore earlier values of rows.")
rows.command("restore")(restore_rows)
app.add_typer(rows, name="rows")
flushing = typer.Typer(
    no_args_is_help=True, help="Declare how often the gateway is flushed, and from how much on."
)
flushing.command()(show_flushing)
flushing.command("put")(put_flushing)
app.add_typer(flushing, name="flushing")

tables = typer.Typer(no_args_is_help=True, help="Move tables to shards, and remove tables.")
tables.command("list")(list_tables)
tables.command()(place)
tables.command("remove")(remove_table)
app.add_typer(tables, name="tables")
access = typer.Typer(
    no_args_is_help=True, help="Revoke and restore the access of users and clients."
)
access.command("list")(list_access)
access.command("show")(show_access)
for _command in (revoke, restore, release):
    access.command()(_command)
app.add_typer(access, name="access")
clients = typer.Typer(
    no_args_is_help=True,
    help="List clients with their connections and lag; disconnect one.",
)
clients.command("list")(list_clients)
clients.command()(disconnect)
clients.command("revoke")(revoke_client)
app.add_typer(clients, name="clients")
client = typer.Typer(
    no_args_is_help=True, help="Move a client's file on this machine to another gateway."
)
client.command()(move)
app.add_typer(client, name="client")
gateways = typer.Typer(
    no_args_is_help=True, help="Export or delete a gateway; find or erase a row."
)
gateways.command()(export)
gateways.command("find-row")(find_row)
gateways.command()(erase)
gateways.command("delete")(delete_gateway)
app.add_typer(gateways, name="gateways")
stack = typer.Typer(no_args_is_help=True, help="Delete a whole deployment.")
stack.command("delete")(delete_stack)
app.add_typer(stack, name="stack")
databases = typer.Typer(
    no_args_is_help=True,
    help="Copy a gateway's tables from one database to another, and compare them.",
)
databases.command("copy")(copy_databases)
databases.command("compare")(compare_databases)
databases.command("new")(new_database)
app.add_typer(databases, name="databases")
connectors = typer.Typer(no_args_is_help=True, help="Poll outside systems for rows of the gateway.")
connectors.command("types")(connector_types)
connectors.command("new")(new_connector)
connectors.command("list")(list_connectors)
connectors.command("show")(show_connector)
connectors.command("add")(add_connector)
connectors.command("test")(test_connector)
connectors.command("configure")(configure)
connectors.command("check")(check_connector)
connectors.command("run")(run_connector)
connectors.command("reset")(reset_connector)
for _command in (pause, resume, remove):
    connectors.command()(_command)
app.add_typer(connectors, name="connectors")

actions = typer.Typer(
    no_args_is_help=True,
    help="Run actions on outside systems: webhooks, events, executions.",
)
actions.command("list")(list_actions)
actions.command("add")(add_action)
actions.command("remove")(remove_action)
actions.command("run")(run_action)
app.add_typer(actions, name="actions")
lake = typer.Typer(no_args_is_help=True, help="Show and maintain the gateway's tables in the lake.")
lake.command("status")(lake_status)
lake.command()(maintain)
lake.command()(repair)
lake.command()(rebuild)
lake.command()(views)
lake.command()(share)
lake.command()(unshare)
app.add_typer(lake, name="lake")
destinations = typer.Typer(no_args_is_help=True, help="Deliver a gateway's rows to databases.")
destinations.command("list")(list_destinations)
destinations.command("check")(check_destination)
destinations.command("add")(add_destination)
destinations.command("pause")(pause_destination)
destinations.command("resume")(resume_destination)
destinations.command("backfill")(backfill_destination)
destinations.command("replay")(replay_destination)
destinations.command("remove")(remove_destination)
app.add_typer(destinations, name="destinations")

flows = typer.Typer(no_args_is_help=True, help="Move rows from any source to any destination.")
for _name, _command in (
    ("list", list_flows), ("plan", plan_flows), ("apply", apply_flows), ("status", status_flow),
    ("run", run_flow), ("pause", pause_flow), ("resume", resume_flow),
    ("backfill", backfill_flow), ("remove", remove_flow),
):  # fmt: skip
    flows.command(_name)(_command)
app.add_typer(flows, name="flows")
quota = typer.Typer(no_args_is_help=True, help="Manage how much a gateway may push in a second.")
quota.command("show")(show_quota)
quota.command("set")(set_quota)
quota.command("reset")(reset_quota)
app.add_typer(quota, name="quota")
checkpoint = typer.Typer(
    no_args_is_help=True, help="List and build checkpoints: the rows that new clients start from."
)
checkpoint.command("list")(list_checkpoints)
checkpoint.command("show")(show_checkpoint)
checkpoint.command()(build)
app.add_typer(checkpoint, name="checkpoint")


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
