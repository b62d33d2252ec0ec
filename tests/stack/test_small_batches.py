"""A quiet gateway on the deployed stack: its edits are in the lake, and no Glue run was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op
from tests.infrastructure.stack import functions
from tests.stack.test_flow_ends import iceberg_url, secret_of
from tests.stack.test_flows import Flows
from tests.stack.test_thresholds import large
from tests.support.deployed import Tenant, quick_to_flush, unflushed
from tests.support.waiting import answered, drained
from tools.local_stack.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Glue
    from tools.local_stack.stack import Stack

UNZIPPED_BYTES_MAX = 250 << 20
"""Of a function with its layers, as Lambda has it."""


def push_and_wait(tenant: Tenant, turn: int) -> None:
    """Change rows, and wait until they are in the lake."""
    tenant.push([tenant.make(Op.UPDATE, f"r{n}", {"turn": turn}) for n in range(turn, 20)])
    tenant.flush()
    drained(tenant.waiting)


@pytest.mark.law("L1", "L19", "D19", "Y1", "Y5")
def test_small_batches_reach_the_lake_without_a_glue_run_and_a_flow_reads_them(
    tenant: Tenant, glue: Glue, stack: Stack, aws: Aws, lakesync: Callable[..., Any]
) -> None:
    glue.settle()
    push_and_wait(tenant, 0)  # the tables are new: a run makes them
    glue.settle()
    before = len(glue.runs())
    push_and_wait(tenant, 1)
    tenant.push([tenant.make(Op.DELETE, "r3"), tenant.make(Op.INSERT, "new", {"turn": large(9)})])
    push_and_wait(tenant, 2)

    assert len(glue.runs()) == before
    assert tenant.lake_rows() == tenant.expected()
    assert tenant.table("todos__changes").num_rows == len(tenant.deltas)

    # To another gateway, of which so much is flushed unasked.
    flows = Flows(Tenant(stack), aws, lakesync)
    quick_to_flush(flows.tenant)
    flows.declare({
        "name": "on", "schedule": {"everyMinutes": 1_440}, "tables": ["todos"],
        "source": {"database": "iceberg", "secret": secret_of(flows, iceberg_url(flows, stack)),
                   "gateway": tenant.gateway},
        "destination": "gateway",
    })  # fmt: skip
    assert {delta.row_id for delta in flows.tenant.pull("phone")} == tenant.expected().keys()
    answered(lambda: unflushed(flows.tenant), lambda size: size == 0)
    flows.ask("DELETE", "/on")


def test_functions_with_built_layers_fit_the_size_limit_of_lambda(stack: Stack) -> None:
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
