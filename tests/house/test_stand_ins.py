"""``docs/testing.md`` says which tests run on what stands in for AWS, and no others do."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.repository import ROOT, Module, imported, modules
from tests.support.some import some

PAGE = ROOT / "docs" / "testing.md"
STAND_INS = {
    "moto": ("moto",),
    "DynamoDB Local": ("tools.local_stack.dynamodb_local.start_dynamodb_local",),
    "the AWS emulator": (
        "tools.local_stack.aws_emulator",
        "tests.support.emulated_stack",
        "tests.glue.support.deployed_job",
    ),
}
"""By what the page calls it, the modules through which tests reach it."""
FIXTURES = {
    "moto": {"in_moto"},
    "DynamoDB Local": {"dynamodb_local", "buffer", "item_store"},
    "the AWS emulator": {"emulator", "emulated_dynamodb"},
}
"""The fixtures that do it for tests."""
OF_CONTRACTS = {"in_moto", "buffer", "item_store"}
"""Those of the contract suites; elsewhere these names are of something else."""


def users(stand_in: str) -> list[str]:
    """Return the modules of tests that reach a stand-in; helpers and fixtures are none."""
    return sorted(
        module.name.removeprefix("tests/")
        for module in modules("tests/")
        if "/test_" in module.name
        and module.name != "tests/house/test_stand_ins.py"
        and (reaches(module, STAND_INS[stand_in]) or FIXTURES[stand_in] & requested(module))
    )


def requested(module: Module) -> set[str]:
    """Return the names of fixtures that a module requests."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
    arguments = {one.arg for function in functions for one in function.args.args}
    texts = {node.value for node in ast.walk(module.tree)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip
    own = {function.name for function in functions}
    if not module.name.startswith("tests/contracts/"):
        own |= OF_CONTRACTS
    return (arguments | texts) - own


def reaches(module: Module, through: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for name in imported(module)
               for one in through)  # fmt: skip


def listed(stand_in: str) -> list[str]:
    """Return the modules that the page lists for a stand-in."""
    [row] = [line for line in PAGE.read_text("utf-8").splitlines()
             if line.startswith(f"| {stand_in} |")]  # fmt: skip
    return sorted(re.findall(r"`([a-z_/0-9]+\.py)`", row.split("|")[3]))


@pytest.mark.parametrize("stand_in", STAND_INS)
def test_testing_page_lists_exactly_the_tests_on_each_stand_in(stand_in: str) -> None:
    assert users(stand_in)
    assert listed(stand_in) == users(stand_in)


def test_testing_helpers_for_apps_import_no_aws_libraries() -> None:
    needed = {
        name
        for module in some(modules("layers/lakesync/python/lakesync/testing/"))
        for name in imported(module)
        if name.split(".")[0] in {"moto", "boto3", "botocore", "tests", "tools"}
    }
    assert needed == set()
