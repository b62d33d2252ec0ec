"""Every command that changes something leaves a record: by its route, or made by itself."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.session import listed
from lakesync.gateway.admin_changes import stated
from tests.support.command_lines import commands
from tests.support.repository import ROOT, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

READ = {
    "access list", "access show", "actions list", "audit", "checkpoint list", "checkpoint show",
    "clients list", "connectors check", "connectors list", "connectors show", "connectors test",
    "connectors types", "cost", "databases compare", "destinations check", "destinations list",
    "diff", "doctor", "flows list", "flows plan", "flows status", "flushing show",
    "gateways export", "gateways find-row", "history", "lake status", "pull", "query", "quota show",
    "rules check", "rules show", "rules try", "schema list", "schema show", "secret", "status",
    "tables list",
}  # fmt: skip
"""They change nothing."""
OF_THIS_MACHINE = {
    "client move",
    "codegen",
    "connectors new",
    "databases copy",
    "databases new",
    "token",
}
"""They write files, sign tokens, or write to databases that the caller names and has keys for."""
AS_A_CLIENT = {"actions run", "push", "rows restore", "smoke"}
"""They write rows, or have actions run, whose record is the history; `smoke` in a gateway of its
own."""
BY_ROUTE = {
    "access release", "access restore", "access revoke", "actions add", "actions remove",
    "clients disconnect", "clients revoke", "connectors add", "connectors configure",
    "connectors pause", "connectors remove", "connectors reset", "connectors resume",
    "connectors run", "destinations add", "destinations backfill", "destinations pause",
    "destinations remove", "destinations replay", "destinations resume", "flows apply",
    "flows backfill", "flows pause", "flows remove", "flows resume", "flows run", "flush",
    "flushing put",
    "gateways delete", "rules put", "schema put", "schema strict", "tables place",
    "tables remove",
}  # fmt: skip
"""They ask routes below ``/admin/``, each of which records its changes (tests/compat)."""
BY_CREDENTIALS = {
    "checkpoint build": {"buildCheckpoint"},
    "gateways delete": {"dropLakeTables"},
    "gateways erase": {"eraseRows"},
    "lake maintain": {"maintainLake"},
    "lake rebuild": {"rebuildLake"},
    "lake repair": {"repairLake"},
    "lake share": {"shareLakeTable"},
    "lake unshare": {"unshareLakeTable"},
    "lake views": {"createLakeViews"},
    "quota reset": {"setQuota"},
    "quota set": {"setQuota"},
    "replay": {"replayClaims", "replayQueue"},
    "restored": {"beginEpoch", "restoreBuffer"},
}
"""They change something with the caller's AWS credentials, and make these records of it."""
WITH_THE_RECORD = {"stack delete"}
"""They remove the record itself; CloudFormation and CloudTrail keep that they did."""
WRITES = {
    "cli/commands/backlog.py": {"replay"},
    "cli/commands/erase.py": {"gateways erase"},
    "cli/commands/gateways.py": {"checkpoint build", "quota set"},
    "cli/doctor/protection.py": {"restored"},
    "cli/erasure.py": {"gateways erase"},
    "cli/lake_tables.py": {"lake maintain", "lake repair", "replay"},
    "cli/removal.py": {"gateways delete", "stack delete"},
}
"""Where the command line writes with AWS credentials, and for which commands."""
WRITING = (
    "put_object", "delete_object", "delete_objects", "delete_table", "delete_database",
    "drop_namespace",
    "send_message", "delete_message", "invoke", "start_job_run", "start_execution", "update_table",
    "update_continuous_backups", "create_tag", "set_quota", "put_item", "update_item",
    "delete_item", "put_secret_value", "update_function_configuration",
)  # fmt: skip
CLI = "layers/lakesync/python/lakesync/"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call, with the last part of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            yield name, node


def keywords(call: ast.Call) -> set[str | None]:
    """Return the names of the arguments that are given by name."""
    return {keyword.arg for keyword in call.keywords}


@pytest.mark.law("J1")
def test_every_command_is_classified_by_how_its_changes_are_audited() -> None:
    sets = [READ, OF_THIS_MACHINE, AS_A_CLIENT, BY_ROUTE, set(BY_CREDENTIALS), WITH_THE_RECORD]
    there = set(commands())

    assert set().union(*sets) == there
    both = {"gateways delete"}  # the gateway by a route, its tables in the lake by credentials
    assert sum(map(len, sets)) == len(there) + len(both)


@pytest.mark.law("J1")
def test_the_audit_operations_in_the_code_are_those_that_are_listed() -> None:
    made = {
        argument.value
        for module in modules(CLI + "cli/")
        for name, call in calls(module.tree)
        if name in {"audited", "recorded"}
        for argument in call.args[:2]
        if isinstance(argument, ast.Constant)
    }

    assert made == set().union(*BY_CREDENTIALS.values())


@pytest.mark.law("J2")
def test_every_audited_command_records_the_state_before_and_after() -> None:
    silent = [
        ast.unparse(call)
        for module in modules(CLI + "cli/")
        for name, call in calls(module.tree)
        if name == "audited" and len(call.args) < 4 and "shows" not in keywords(call)
    ]

    assert silent == []


@pytest.mark.law("J2")
@pytest.mark.parametrize("name", ["n", "a table's name" * 5, '"' * 40, "ü\x07" * 20])
def test_a_list_of_any_number_of_names_fits_into_an_audit_record(name: str) -> None:
    few, many = listed([name] * 2), listed([name] * 9_000)

    assert few == {"number": 2, "first": [name] * 2}
    assert many["number"] == 9_000
    assert json.loads(stated([many] * 3)) == [many] * 3


@pytest.mark.law("J1")
def test_only_audited_commands_write_with_aws_credentials() -> None:
    written = {
        module.name.removeprefix(CLI)
        for module in modules(CLI + "cli/")
        if any(name in WRITING for name, _ in calls(module.tree))
    }

    assert written == set(WRITES)
    assert set().union(*WRITES.values()) <= set(BY_CREDENTIALS) | WITH_THE_RECORD


@pytest.mark.law("J1")
def test_the_audit_page_names_every_command_that_records_its_own_changes() -> None:
    page = (ROOT / "docs" / "spec" / "audit.md").read_text("utf-8").partition("## Laws")[0]

    for name in BY_CREDENTIALS:
        group, _, last = name.partition(" ")
        assert f"`{group}" in page
        assert last in page
