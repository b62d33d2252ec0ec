"""Imports point one way, in the library and around it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import ROOT, imported, library_modules, modules
from tests.support.some import some


def test_the_import_contracts_of_pyproject_hold() -> None:
    program = "from importlinter.cli import lint_imports_command as main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_have_no_circular_imports() -> None:
    """Not even where the import is for types, or within a function: neither is read alone."""
    every = {module.dotted: imported(module) for module in library_modules()}
    needs = {
        name: {other for other in every if other in names and other != name}
        for name, names in every.items()
    }
    for through in every:
        for name in every:
            if through in needs[name]:
                needs[name] |= needs[through]
    circles = {
        (name, other)
        for name in every
        for other in needs[name]
        if name < other and name in needs[other]
    }

    assert circles == set()


def strangers(folder: str, *allowed: str) -> list[str]:
    """Return what the files of a folder import of ours beyond what they may."""
    return sorted(
        f"{module.name} imports {name}"
        for module in some(modules(folder))
        for name in imported(module)
        if name.startswith("lakesync.") and not name.startswith(allowed)
    )


def test_functions_import_only_the_runtime_and_errors() -> None:
    assert strangers("functions/", "lakesync.runtime", "lakesync.errors") == []


def test_glue_jobs_import_only_the_pure_core_and_listed_modules() -> None:
    pure = ("lakesync.core", "lakesync.errors", "lakesync.ports", "lakesync.wire")
    checkpoints = ("lakesync.checkpoint", "lakesync.adapters.lake.s3")
    maintenance = "lakesync.maintenance.lake_plan"

    tables = ("lake_catalogue", "work_queue", "change_files", "lake_schema")
    shared = (*tables, "sharing", "views")
    materialise = [f"lakesync.materialise.{name}" for name in shared]

    lake = (*pure, *checkpoints, maintenance, *materialise)
    # The job of large batches is the function that delivers, with Spark for what is large.
    bigquery = "lakesync.systems.bigquery"
    delivers = ("lakesync.adapters", "lakesync.delivery", "lakesync.runtime", bigquery)
    delivering = ("glue_jobs/materialise_bigquery.py", "glue_jobs/lakesync_spark/bigquery/")

    # The job of flows is the function that polls them.
    polls = "lakesync.connectors"
    polling = ("glue_jobs/move_flow.py", "glue_jobs/lakesync_spark/flows/")

    found = strangers("glue_jobs/", *lake)
    assert [one for one in found if not one.startswith((*delivering, *polling))] == []
    assert strangers("glue_jobs/", *lake, *delivers, polls) == []
    assert not [one for one in strangers("glue_jobs/", *lake, polls) if "_spark/flows/" in one]


@pytest.mark.parametrize("kind", ["common", "iceberg", "bigquery", "flows"])
def test_each_folder_of_spark_code_imports_only_itself_and_common(kind: str) -> None:
    faults = [
        f"{module.name} imports {name}"
        for module in some(modules(f"glue_jobs/lakesync_spark/{kind}/"))
        for name in imported(module)
        if name.startswith("lakesync_spark.") and name.split(".")[1] not in {kind, "common"}
    ]

    assert faults == []


def test_spark_transforms_import_no_network_libraries() -> None:
    faults = [
        f"{module.name} imports {name}"
        for module in some(modules("glue_jobs/lakesync_spark/"))
        for name in imported(module)
        if name.split(".")[0] in {"boto3", "botocore", "requests", "urllib", "socket"}
    ]

    assert faults == []


def test_only_adapters_and_edges_import_boto3() -> None:
    edges = (
        "adapters/lake/",
        "actions/declared_actions",
        "buffer/",
        "runtime/",
        "analysis/connection",
        "cli/",
    )
    faults = [
        module.name
        for module in library_modules()
        if not module.name.split("/lakesync/", 2)[-1].startswith(edges)
        and imported(module) & {"boto3", "botocore"}
    ]

    assert faults == []


def test_the_product_never_imports_its_tests_or_tools() -> None:
    faults = [
        f"{module.name} imports {name}"
        for module in some(modules("layers/lakesync/", "functions/", "glue_jobs/"))
        for name in imported(module)
        if name.split(".")[0] in {"tests", "tools", "benchmarks", "pytest", "hypothesis", "moto"}
        # What ships for the tests of apps has fixtures.
        and (name.split(".")[0] != "pytest" or "/lakesync/testing/" not in module.name)
    ]

    assert faults == []
