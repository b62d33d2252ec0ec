"""Layers: what the tests run is what is deployed, and the build leaves nothing to chance."""

from __future__ import annotations

import ast
import base64
import io
import re
import runpy
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING, Any

import pytest

from tests.infrastructure.stack import functions
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOCKS = sorted(
    path for kind in ("layer", "job") for path in (ROOT / "requirements").glob(f"{kind}-*.lock")
)


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ \\]+)", path.read_text(), re.MULTILINE))


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "layers" / name), run_name="imported")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_layers_pin_the_versions_that_the_tests_run_with(path: Path) -> None:
    tested = pins(ROOT / "requirements" / "dev.lock")
    deployed = pins(path)

    assert deployed
    assert {name: tested.get(name, version) for name, version in deployed.items()} == deployed


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_file_has_a_hash_for_every_package_and_no_index_url(path: Path) -> None:
    text = path.read_text()

    assert text.count("--hash=sha256:") >= len(pins(path))
    assert "://" not in text


@pytest.mark.parametrize(
    ("architecture", "platform"),
    [("arm64", "aarch64-manylinux_2_28"), ("x86_64", "x86_64-manylinux_2_28")],
)
def test_layer_build_requests_wheels_for_the_deployed_processor(
    architecture: str, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    build = script("build_layer.py")["main"]
    at = ["--name", "web", "--runtime", "python3.13", "--into", str(tmp_path)]
    status = build([*at, "--architecture", architecture])
    [install] = [command for command in asked if "--require-hashes" in command]

    assert status == 0
    processor = platform.partition("-")[0]
    assert platform in install or f"manylinux_2_28_{processor}" in install
    other = {"aarch64": "x86_64", "x86_64": "aarch64"}[processor]
    assert not [word for word in install if word.endswith(other) or word.startswith(f"{other}-")]


def test_files_that_no_function_reads_are_pruned_from_a_layer(tmp_path: Path) -> None:
    for name in (
        "bin/tool", "a/__init__.py", "a/x.pyi", "a/py.typed", "a/tests/test_a.py",
        "a-1.dist-info/RECORD", "a-1.dist-info/METADATA", "a-1.dist-info/entry_points.txt",
        "google/protobuf/any.proto", "lakesync/wire/lakesync.proto",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    script("build_layer.py")["prune"](tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())

    assert left == [
        "a-1.dist-info/METADATA", "a-1.dist-info/entry_points.txt", "a/__init__.py",
        "lakesync/wire/lakesync.proto",
    ], "the schema of messages is what a function answers"  # fmt: skip


def test_iceberg_layer_omits_the_packages_that_only_its_command_line_needs(tmp_path: Path) -> None:
    """In other layers it stays; and a table is written and read without it."""
    unused = script("build_layer.py")["UNUSED_OF_ICEBERG"]
    packages = [name for name in unused if "/" not in name]
    for layer, name in [("dlt", "dlt"), ("iceberg", "pyiceberg")]:
        for package in (name, *packages):
            (tmp_path / layer / package).mkdir(parents=True)
        script("build_layer.py")["prune"](tmp_path / layer)
    assert sorted(path.name for path in (tmp_path / "dlt").iterdir()) == sorted(["dlt", *packages])
    assert [path.name for path in (tmp_path / "iceberg").iterdir()] == ["pyiceberg"]

    names = [name.replace("/", ".").removesuffix("*").removesuffix(".py") for name in unused]
    code = f"""
import sys
from pathlib import Path
sys.modules.update(dict.fromkeys({names!r}))
import pyiceberg.catalog.glue, pyiceberg.catalog.rest
from tests.support.lake_databases import LakeDatabases
from lakesync.testing.database_contract import batch, numbered
database = LakeDatabases(Path({str(tmp_path)!r})).adapter()
print(database.insert_deltas(batch("t", numbered("t", 3))).unwrap().rows)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (ran.stdout.strip(), ran.returncode) == ("3", 0), ran.stderr


def test_layer_bytecode_is_unchecked_hash_based(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("VALUE = 7\n")
    version = "{}.{}".format(*sys.version_info)
    script("build_layer.py")["compile_for"](version, tmp_path)
    compiled = next((tmp_path / "__pycache__").glob("module.*.pyc")).read_bytes()

    # PEP 552: 1 is a hash, and 2 would be a hash that is checked.
    assert int.from_bytes(compiled[4:8], "little") == 1


def test_layer_for_a_runtime_missing_on_this_machine_has_no_bytecode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module.py").write_text("VALUE = 7\n")
    script("build_layer.py")["compile_for"]("3.99", tmp_path)

    assert "slower cold starts" in capsys.readouterr().out
    assert not (tmp_path / "__pycache__").exists()


def test_job_bundle_is_reproducible() -> None:
    bundle = script("bundle_job.py")

    assert bundle["archive"]() == bundle["archive"]()


def test_job_bundle_contains_the_core_and_no_gateway_or_client_code() -> None:
    with zipfile.ZipFile(io.BytesIO(script("bundle_job.py")["archive"]())) as archive:
        names = archive.namelist()

    assert {"lakesync/__init__.py", "lakesync/core/merge.py", "lakesync/errors.py"} <= set(names)
    strange = r"lakesync/(buffer|cli|client|flush|gateway|runtime)/"
    assert not [name for name in names if re.match(strange, name)]


def _imported(source: bytes) -> set[str]:
    """Return the modules of ours that a module imports, at once or while it works."""
    tree = ast.parse(source)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    imports = [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types
    ]
    return {name for name in imports if name.startswith("lakesync")}


def test_modules_in_the_job_bundle_import_only_modules_in_the_bundle() -> None:
    """Not even while it works: what a job of the lake cannot import fails its first batch."""
    with zipfile.ZipFile(io.BytesIO(script("bundle_job.py")["archive"]())) as archive:
        carried = {
            name[:-3].replace("/", ".").removesuffix(".__init__"): archive.read(name)
            for name in archive.namelist()
        }
    library = some(name for name in carried if name.partition(".")[0] == "lakesync")

    lacking = {name: _imported(carried[name]) - carried.keys() for name in library}
    assert {name: modules for name, modules in lacking.items() if modules} == {}


LATER = {
    "materialise_bigquery": "import lakesync.delivery.deliverer, lakesync.buffer.dynamo\n"
    "import lakesync.runtime.wiring, lakesync.adapters.connect\n"
    "import lakesync.systems.bigquery.bigquery_database\n"
    "import lakesync.adapters.lake.adapter, lakesync.adapters.lake.s3\n",
    "move_flow": "import lakesync.connectors.large_polls, lakesync.flows.routes\n"
    "import lakesync.buffer.admin_stores, lakesync.buffer.dynamo, lakesync.buffer.admission\n"
    "import lakesync.runtime.wiring, lakesync.compat.follower_deltas, lakesync.gateway.push\n"
    "import lakesync.systems.postgres.postgres_dialect, lakesync.systems.mysql.mysql_dialect\n"
    "import lakesync.adapters.lake.adapter\n"
    "import lakesync.adapters.connect, lakesync.adapters.lake.s3, lakesync.adapters.lake.s3\n"
    "import lakesync.systems.iceberg.iceberg_database\n"
    "import lakesync.systems.bigquery.bigquery_database, lakesync.systems.objects\n"
    "import lakesync.adapters.lake.s3_adapter\n"
    "from lakesync.connectors.registry import connector_type\n"
    "kinds = [connector_type(one) for one in ('postgres', 'mysql')]\n"
    "import lakesync.systems.postgres.postgres_capture, lakesync.systems.mysql.mysql_capture\n",
}
"""What a job imports only when it is at work."""


@pytest.mark.parametrize(
    "job",
    ["materialise_iceberg", "build_checkpoint", "maintain_lake", "materialise_bigquery",
     "move_flow"],
)  # fmt: skip
def test_job_imports_lakesync_only_from_its_bundle(job: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages.zip"
    packages.write_bytes(script("bundle_job.py")["archive"](job))
    code = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
        f"sys.path[:] = [{str(packages)!r}, *(p for p in sys.path if 'layers' not in p)]\n"
        f"import {job}\n{LATER.get(job, '')}"
        "ours = [m for m in sys.modules.values() if m.__name__.startswith('lakesync')]\n"
        "print({m.__spec__.origin.partition('.zip')[0] for m in ours})\n"
        "print('google' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    # Only checkpoints and what BigQuery keeps are protobuf, which is not Glue's own.
    needs = str(job in {"build_checkpoint", "materialise_bigquery", "move_flow"})
    assert answer.stdout.splitlines() == [repr({str(packages)[:-4]}), needs], answer.stderr


def test_job_script_runs_the_job_from_its_embedded_bundle(tmp_path: Path) -> None:
    bundle = script("bundle_job.py")
    archive = io.BytesIO(bundle["archive"]())
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(
            "trial.py",
            "import lakesync.core.merge, os, sys\n"
            "print(lakesync.core.merge.__file__.startswith(os.environ['LAKESYNC_PACKAGES']))\n"
            "print(sys.argv[1:])\n",
        )
    packages = base64.b64encode(archive.getvalue()).decode()
    text = bundle["SCRIPT"].format(job="trial", digest="0", packages=packages)
    (tmp_path / "script.py").write_text(text)
    answer = subprocess.run(
        [sys.executable, "-I", "script.py", "--lake_bucket", "lake"],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.stdout.splitlines() == ["True", "['--lake_bucket', 'lake']"], answer.stderr


PROVIDED_BY_LAMBDA = {"boto3", "botocore", "jmespath", "s3transfer", "urllib3", "dateutil", "six"}
IMPORTS_WITHOUT = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"no layer of the function has {{name}}", name=name)

sys.meta_path.insert(0, Blocked())
for module in {modules!r}:
    importlib.import_module(module)
"""


@pytest.mark.parametrize("name", sorted(functions()))
def test_function_imports_only_what_its_layers_have(name: str) -> None:
    """The packages that no layer of it has are not there; those of other layers are blocked."""
    properties = functions()[name]
    layers = str(properties["Layers"])  # some are there by a condition
    own = {layer for layer in LAYERS if f"'{layer}'" in layers}
    blocked = _packages(LAYERS.keys() - own) - _packages(own) - PROVIDED_BY_LAMBDA
    app = (ROOT / properties["CodeUri"] / "app.py").read_text()
    modules = [
        f"{node.module}.{each.name}" if node.module == "lakesync.runtime" else str(node.module)
        for node in ast.walk(ast.parse(app))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lakesync")
        for each in node.names
    ]

    assert modules
    code = IMPORTS_WITHOUT.format(blocked=blocked, modules=sorted({*modules}))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "layers" / "lakesync" / "python"), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2_000:]


LAYERS = {
    f"{path.stem.removeprefix('layer-').title()}Layer": path
    for path in LOCKS
    if path.stem.startswith("layer-")
}


def _packages(layers: Iterable[str]) -> set[str]:
    """Return the top-level modules of the packages of layers, by the tests' own environment."""
    packages = {package for layer in layers if layer in LAYERS for package in pins(LAYERS[layer])}
    modules = packages_distributions()
    return {
        module
        for module, names in modules.items()
        if packages & {name.lower().replace("_", "-") for name in names}
    }
