"""Every call that the deployed code made is allowed to its role on AWS, and little else is.

It comes behind all that call: what it reads is the record of what the tests before it caused. Only
the deletion of the stack follows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import audit
from tests.support.call_sites import sites
from tests.support.some import some

if TYPE_CHECKING:
    from lakesync.analysis.connection import Aws
    from tests.support.audit import Asked
    from tests.support.resolved import Deployed

HERE = Path(__file__).parent
UNUSED_SHARE_MAX = 1 / 20
"""Of the template's statements, those that may be used by no recorded call."""


@pytest.fixture(scope="module")
def deployed(aws: Aws) -> Deployed:
    """The transformed template with what the stack has in place of its references."""
    return audit.deployed(aws.client("cloudformation"), aws.stack)


@pytest.fixture(scope="module")
def record(stack_folder: Path) -> list[dict[str, Any]]:
    """What the emulator's door wrote down."""
    return audit.record(stack_folder)


@pytest.fixture(scope="module")
def asked(deployed: Deployed, record: list[dict[str, Any]]) -> list[Asked]:
    """Every question to a role, by those who called and by AWS itself."""
    return [*audit.asked_of_callers(record), *some(audit.asked_of_services(deployed))]


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> None:
    """Some calls are made by some tests: without all of them nothing is known to be missing."""
    files = {item.path.name for item in request.session.items if item.path.parent == HERE}
    if request.config.option.keyword or files != {path.name for path in HERE.glob("test_*.py")}:
        pytest.skip("needs the record of all tests of the stack")


def test_each_function_and_job_calls_aws_with_its_own_access_key(
    record: list[dict[str, Any]],
) -> None:
    callers: dict[str, set[str]] = {}
    for entry in record:
        callers.setdefault(entry["key"], set()).add(entry["caller"])

    assert {key: names for key, names in callers.items() if len(names) > 1} == {}


def test_required_permissions_of_every_recorded_call_are_known(
    record: list[dict[str, Any]],
) -> None:
    assert audit.unknown(record) == set(), "say in tools/local_stack/calls what AWS asks"


def test_every_recorded_call_is_allowed_to_its_role(deployed: Deployed, asked: list[Asked]) -> None:
    buffer = f"table/{deployed.physical['BufferTable']}"

    def in_place(one: Asked) -> Asked:
        """Return a question about a restored table as one about the table whose place it took.

        A test of restoring points functions at it; a deployment also gives their roles the table.
        """
        return one._replace(resource=re.sub(r"table/restored-\w+", buffer, one.resource))

    assert audit.refused(deployed, [in_place(one) for one in asked])[:20] == []


@pytest.mark.usefixtures("whole")
def test_every_policy_statement_is_used_by_a_call_or_listed_with_a_reason(
    deployed: Deployed, asked: list[Asked]
) -> None:
    statements, used = audit.used(deployed, asked)
    unused, listed = statements.keys() - used, audit.listed()
    explained = {**listed["unused"], **listed["used_by"]}

    assert {where: str(statements[where].statement) for where in unused - explained.keys()} == {}
    assert explained.keys() - statements.keys() == set(), "these are no more"
    assert listed["unused"].keys() & used == set(), "these are used: strike them out"
    assert len(listed["unused"]) <= len(statements) * UNUSED_SHARE_MAX


@pytest.mark.usefixtures("whole")
def test_every_call_site_of_aws_is_recorded_or_listed_with_a_reason(
    record: list[dict[str, Any]],
) -> None:
    made = {entry["operation"].partition(":")[2] for entry in record}
    listed = audit.listed()
    folders, operations = listed["sites_in"], listed["sites_of"]
    ours = [site for site in sites() if not any(map(site.file.startswith, folders))]
    missing = {(site.operation, site.file) for site in ours if site.operation not in made}

    assert {one for one in missing if one[0] not in operations} == set()
    assert operations.keys() - {site.operation for site in ours} == set(), "nobody calls these"
