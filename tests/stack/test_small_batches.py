"""A quiet gateway on the deployed stack: its edits are in the lake, and no Glue run was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.core.delta import Op
from tests.infrastructure.stack import functions
from tests.support.waiting import drained
from tools.local_stack.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.deployed import Glue, Tenant
    from tools.local_stack.stack import Stack

UNZIPPED_BYTES_MAX = 250 << 20
"""Of a function with its layers, as Lambda has it."""


def push_and_wait(tenant: Tenant, turn: int) -> None:
    """Change rows, and wait until they are in the lake."""
    tenant.push([tenant.make(Op.UPDATE, f"r{n}", {"turn": turn}) for n in range(turn, 20)])
    tenant.flush()
    drained(tenant.waiting)


@pytest.mark.law("L1", "L19")
def test_edits_of_a_quiet_gateway_are_in_the_lake_without_a_run(tenant: Tenant, glue: Glue) -> None:
    glue.settle()
    push_and_wait(tenant, 0)  # the tables are new: a run makes them
    glue.settle()
    before = len(glue.runs())
    push_and_wait(tenant, 1)
    tenant.push([tenant.make(Op.DELETE, "r3"), tenant.make(Op.INSERT, "new", {"turn": 9})])
    push_and_wait(tenant, 2)

    assert len(glue.runs()) == before
    assert tenant.lake_rows() == tenant.expected()
    assert tenant.table("todos__changes").num_rows == len(tenant.deltas)


def test_a_function_with_its_layers_is_no_larger_than_lambda_takes(stack: Stack) -> None:
    assert stack.stack, "it was built"
    build = ROOT / ".aws-sam" / "build"
    sizes = {
        name: sum(
            _bytes_of(build / layer["Ref"])
            for layer in properties.get("Layers", [])
            if "Ref" in layer  # ConnectorLayer is none of ours, and empty by default
        )
        for name, properties in functions().items()
    }

    assert max(sizes.values()) > 100 << 20, "the layers were built"
    assert {name: size for name, size in sizes.items() if size > UNZIPPED_BYTES_MAX} == {}


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
