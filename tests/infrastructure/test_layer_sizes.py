"""What a function carries fits: its layers, for both processors, as the build makes them."""

from __future__ import annotations

import runpy
import shutil
import sys
from typing import TYPE_CHECKING, Any

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
    """Return the name of a layer's lock, by a function's reference to the layer."""
    if "Fn::If" in reference:
        return OPERATORS
    return str(reference["Ref"]).removesuffix("Layer").lower()


def built(name: str, architecture: str, target: Path) -> None:
    """Build a layer for the runtime that is deployed, without bytecode.

    Its files are links into uv's cache, where that is possible: no test changes one.
    """
    runtime = str(template()["Parameters"]["PythonRuntime"]["Default"]).removeprefix("python")
    lock = ROOT / "requirements" / f"layer-{name}.lock"
    BUILD["install"](lock, runtime, BUILD["PROCESSORS"][architecture], target, "hardlink")
    if name == "lakesync":
        package = ROOT / "layers" / "lakesync" / "python" / "lakesync"
        shutil.copytree(package, target / "lakesync")
    BUILD["prune"](target)


def size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sizes(name: str, folder: Path) -> dict[str, int]:
    """Build a layer for both processors; returns its bytes for each.

    Bytecode is of this machine's Python, which takes as much room as another's, and the same for
    both processors: it is made once.
    """
    built(name, "x86_64", folder / "x86_64")
    sources = size(folder / "x86_64")
    BUILD["compile_for"]("{}.{}".format(*sys.version_info), folder / "x86_64")
    compiled = size(folder / "x86_64")
    built(name, "arm64", folder / "arm64")
    return {"x86_64": compiled, "arm64": size(folder / "arm64") + compiled - sources}


def test_functions_with_their_layers_fit_the_size_limit_of_lambda(tmp_path: Path) -> None:
    carried = {
        name: [layer_of(reference) for reference in each["Layers"]]
        for name, each in functions().items()
    }
    layers = {layer for layers in carried.values() for layer in layers}
    measured = {layer: sizes(layer, tmp_path / layer) for layer in sorted(layers)}

    assert {"lakesync", "lake", "iceberg", "google", OPERATORS} <= layers
    for processor in BUILD["PROCESSORS"]:
        of_layers = {layer: each[processor] for layer, each in measured.items()}
        totals = {name: sum(of_layers[one] for one in layers) for name, layers in carried.items()}
        too_large = {
            name: total for name, total in totals.items() if total > LIMIT_BYTES - CODE_BYTES_MAX
        }
        assert min(of_layers.values()) > 1_000_000, "else nothing was built"
        assert too_large == {}, of_layers
