"""A connector of dlt in the deployed functions: its layer is built and attached as documented."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.stack.test_connectors import rows_of
from tests.support.deployed import Tenant, reconfigure
from tests.support.dlt_sources import Api
from tests.support.waiting import answered
from tools.local_stack import paths
from tools.local_stack.deploy import architecture, python_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.analysis.connection import Aws
    from tools.local_stack.stack import Stack

FUNCTIONS = ("AdminFunction", "IngestFunction")
"""Those that a connector is registered by, and polled by."""


class Orders(Api):
    """An API where the stack's connectors may ask."""


@pytest.fixture(scope="module")
def layer(aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the ARN of dlt's layer, built by the documented commands."""
    folder = tmp_path_factory.mktemp("dlt")
    build = [
        sys.executable, str(paths.ROOT / "layers/build_layer.py"), "--name", "dlt",
        "--runtime", python_runtime(), "--architecture", architecture(), "--into", str(folder),
    ]  # fmt: skip
    subprocess.run(build, check=True, capture_output=True)
    content = {"ZipFile": _zipped(folder).read_bytes()}
    published = aws.client("lambda").publish_layer_version(
        LayerName="lakesync-dlt", Content=content
    )
    arn: str = published["LayerVersionArn"]
    return arn


def _zipped(folder: Path) -> Path:
    made = folder / "dlt.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted((folder / "python").rglob("*")):
            archive.write(path, path.relative_to(folder))
    return made


@contextmanager
def attached(aws: Aws, layer: str) -> Iterator[None]:
    """The functions of connectors have a layer more, as the parameter `ConnectorLayer` has it."""
    client, before = aws.client("lambda"), []
    try:
        for logical in FUNCTIONS:
            name = _function(aws, logical)
            (alias,) = client.list_aliases(FunctionName=name)["Aliases"]
            had = [each["Arn"] for each in client.get_function(
                FunctionName=name)["Configuration"]["Layers"]]  # fmt: skip
            before.append((name, alias, had))
            _configure(aws, name, alias["Name"], [*had, layer])
        yield
    finally:
        for name, alias, had in before:
            reconfigure(aws, name, Layers=had)
            client.update_alias(
                FunctionName=name, Name=alias["Name"], FunctionVersion=alias["FunctionVersion"]
            )


def _configure(aws: Aws, name: str, alias: str, layers: list[str]) -> None:
    client = aws.client("lambda")
    reconfigure(aws, name, Layers=layers)
    version = client.publish_version(FunctionName=name)["Version"]
    client.update_alias(FunctionName=name, Name=alias, FunctionVersion=version)


def _function(aws: Aws, logical: str) -> str:
    resource = aws.client("cloudformation").describe_stack_resource(
        StackName=aws.stack, LogicalResourceId=logical
    )
    name: str = resource["StackResourceDetail"]["PhysicalResourceId"]
    return name


@pytest.mark.law("N8", "N15")
def test_dlt_connector_polls_with_its_layer_and_is_refused_without(
    stack: Stack, aws: Aws, layer: str
) -> None:
    Orders.port = (urlsplit(stack.endpoint).port or 0) + 3
    tenant = Tenant(stack)
    admin, path = tenant.token("ops", role="admin"), f"/admin/connectors/{tenant.gateway}"

    def rows() -> dict[str, Any]:
        return rows_of(tenant, "orders", "value")

    def run() -> None:
        done = tenant.call("POST", f"{path}/shop", token=admin, json={"do": "run"})
        assert done.status_code == 200, done.text

    with Orders(by_time=True) as api:
        body = {
            "type": "dlt", "name": "shop", "everyMinutes": 1_440,
            "configuration": api.settings | {"tables": [{"name": "orders"}]},
        }  # fmt: skip
        refused = tenant.call("POST", path, token=admin, json=body)
        assert refused.status_code == 400, refused.text
        assert "ConnectorLayer" in refused.json()["error"]

        api.put({f"{number}": f"order {number}" for number in range(7)})
        with attached(aws, layer):
            added = tenant.call("POST", path, token=admin, json=body)
            assert added.status_code == 200, added.text
            try:
                run()
                answered(rows, lambda shown: shown == {f"{n}": f"order {n}" for n in range(7)})
                answered(
                    lambda: tenant.call("GET", f"{path}/shop", token=admin).json(),
                    lambda shown: shown["polls"] == 1 and not shown["isReading"],
                )
                api.put({"1": "changed", "9": "new"})
                api.delete("2")
                run()
                wanted = {f"{n}": f"order {n}" for n in range(7)} | {"1": "changed", "9": "new"}
                del wanted["2"]
                answered(rows, lambda shown: shown == wanted)
            finally:
                removed = tenant.call("DELETE", f"{path}/shop", token=admin)
            assert removed.status_code == 200, removed.text
