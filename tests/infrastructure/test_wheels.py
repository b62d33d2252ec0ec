"""The zips that Glue installs: whole wheels of the locked versions, the same in every build."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from tools.uv import uv

BUNDLE: dict[str, Any] = runpy.run_path(
    str(ROOT / "layers" / "bundle_wheels.py"), run_name="imported"
)
INSTALLED = Path(sysconfig.get_path("purelib"))


def installed(name: str) -> Path:
    [info] = INSTALLED.glob(f"{name}-*.dist-info")
    return info


@pytest.mark.parametrize("name", ["pymysql", "psycopg", "psycopg_binary", "pydantic_core"])
def test_wheel_made_of_an_installed_package_is_installable(name: str, tmp_path: Path) -> None:
    file_name, content = BUNDLE["wheel"](INSTALLED, installed(name))
    (tmp_path / file_name).write_bytes(content)
    target = tmp_path / "target"
    subprocess.run(
        [uv(), "pip", "install", "--quiet", "--no-config", "--no-index", "--no-deps", "--python",
         sys.executable, "--target", target, tmp_path / file_name],
        check=True,
    )  # fmt: skip

    for path in installed(name).parent.joinpath(name).rglob("*.so"):
        assert (target / path.relative_to(INSTALLED)).read_bytes() == path.read_bytes()
    assert {path.name for path in (target / name).glob("*.py")} == {
        path.name for path in (INSTALLED / name).glob("*.py")
    }


def test_wheel_of_the_same_package_has_the_same_bytes() -> None:
    info = installed("pymysql")

    assert BUNDLE["wheel"](INSTALLED, info) == BUNDLE["wheel"](INSTALLED, info)


def test_zip_of_wheels_has_a_requirements_file_for_glue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def install(lock: Path, python: str, processor: str, target: Path) -> None:
        asked.append((lock.name, python, processor))
        for name in ("pymysql", "protobuf"):
            for line in (installed(name) / "RECORD").read_text().splitlines():
                path = line.split(",")[0]
                if BUNDLE["is_of_wheel"](path):
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    (target / path).write_bytes((INSTALLED / path).read_bytes())

    monkeypatch.setitem(BUNDLE["archive"].__globals__, "install", install)
    lock = ROOT / "requirements" / "job-flow.lock"
    packed = zipfile.ZipFile(io.BytesIO(BUNDLE["archive"](lock, "3.11")))
    listed = packed.read("wheels/requirements.txt").decode().split()
    wheels = [name for name in packed.namelist() if name.endswith(".whl")]

    assert asked == [("job-flow.lock", "3.11", "x86_64")]
    assert [each.partition("==")[0] for each in listed] == ["protobuf", "pymysql"]
    assert len(wheels) == len(listed)
    for each, wheel in zip(listed, sorted(wheels), strict=True):
        assert wheel.startswith(f"wheels/{each.replace('==', '-')}-")


@pytest.mark.parametrize(
    ("tags", "in_name"),
    [
        (["py2-none-any", "py3-none-any"], "py2.py3-none-any"),
        (
            ["cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"],
            "cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64",
        ),
    ],
)
def test_wheel_file_name_has_each_part_of_its_tags_once(tags: list[str], in_name: str) -> None:
    assert BUNDLE["tag"](tags) == in_name


def test_wheel_build_records_the_glue_version_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUNDLE["main"].__globals__, "archive", lambda *_: b"zip")

    assert BUNDLE["main"](["--glue", "6.0", "--into", str(tmp_path)]) == 0
    assert (tmp_path / "glue-version").read_text() == "6.0\n"
    assert {path.name for path in tmp_path.glob("*.zip")} == {
        f"{job}.gluewheels.zip" for job in ("checkpoint", "bigquery", "flow")
    }


def test_wheel_build_without_a_package_index_fails_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*_: object) -> None:
        raise BUNDLE["BuildError"]("connect this machine to the package index and build again")

    monkeypatch.setitem(BUNDLE["archive"].__globals__, "install", install)

    assert BUNDLE["main"](["--glue", "5.1", "--into", str(tmp_path)]) == 1
    assert "package index" in capsys.readouterr().err
