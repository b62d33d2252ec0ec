"""What a function carries fits: its layers, for both processors, as the build makes them."""

from __future__ import annotations

import runpy
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.infrastructure.stack import functions, template
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_BYTES = 262_144_000
"""Of a function's code with all its layers, unzipped."""
CODE_BYTES_MAX = 1_000_000
"""More than any function's own code."""
OPERATORS = "dlt"
"""The largest layer of packages for connectors that an operator is told to make."""
BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "layers" / "build_layer.py"), run_name="imported")


def layer_of(reference: dict[str, Any]) -> str:
    """Give the name of a layer's lock, by a function's reference to the layer."""
    if "Fn::If" in reference:
        return OPERATORS
    return str(reference["Ref"]).removesuffix("Layer").lower()


def built(name: str, architecture: str, folder: Path) -> int:
    """Build a layer for the runtime that is deployed; gives its bytes.

    Bytecode is this machine's Python's, which takes as much room.
    """
    target = folder / name / "python"
    runtime = str(template()["Parameters"]["PythonRuntime"]["Default"]).removeprefix("python")
    lock = ROOT / "requirements" / f"layer-{name}.lock"
    BUILD["install"](lock, runtime, BUILD["PROCESSORS"][architecture], target)
    if name == "lakesync":
        package = ROOT / "layers" / "lakesync" / "python" / "lakesync"
        shutil.copytree(package, target / "lakesync")
    BUILD["prune"](target)
    BUILD["compile_for"]("{}.{}".format(*sys.version_info), target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    shutil.rmtree(target)
    return size


@pytest.mark.parametrize("architecture", ["arm64", "x86_64"])
def test_every_function_fits_with_its_layers(architecture: str, tmp_path: Path) -> None:
    carried = {
        name: [layer_of(reference) for reference in each["Layers"]]
        for name, each in functions().items()
    }
    sizes = {
        layer: built(layer, architecture, tmp_path)
        for layer in sorted({layer for layers in carried.values() for layer in layers})
    }
    totals = {name: sum(sizes[layer] for layer in layers) for name, layers in carried.items()}

    assert {"lakesync", "lake", "iceberg", "google", OPERATORS} <= sizes.keys()
    assert min(sizes.values()) > 1_000_000, "else nothing was built"
    too_large = {
        name: total for name, total in totals.items() if total > LIMIT_BYTES - CODE_BYTES_MAX
    }
    assert too_large == {}, sizes
