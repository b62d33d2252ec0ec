"""The emulator's patches: that they still meet the emulator, and what the pure ones do."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tools.local_stack import paths
from tools.local_stack.emulator.dynamodb_patches import compile_key_condition
from tools.local_stack.emulator.iam_patches import (
    action_of_batch,
    context_entries,
    glue_resource,
    read_once,
    schedule_group,
)
from tools.local_stack.emulator.lambda_patches import SharedPackage, exception_class, unpacked
from tools.local_stack.emulator.names import NAMES, EmulatorChangedError, check_names, missing_names
from tools.local_stack.emulator.socket_patches import as_request
from tools.local_stack.emulator.template_patches import with_lists_joined, with_values

if TYPE_CHECKING:
    from pathlib import Path


def test_the_installed_emulator_has_every_patched_name() -> None:
    answer = subprocess.run(
        [paths.EMULATOR_PYTHON, "-m", "tools.local_stack.emulator", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=paths.ROOT,
    )
    assert answer.returncode == 0, answer.stderr


def _module_with(names: tuple[str, ...]) -> Any:
    module = SimpleNamespace()
    for name in names:
        outer, _, inner = name.partition(".")
        value = getattr(module, outer, SimpleNamespace())
        if inner:
            setattr(value, inner, None)
        setattr(module, outer, value)
    return module


@pytest.mark.parametrize(
    ("module_name", "name"), [(module, name) for module, names in NAMES.items() for name in names]
)
def test_missing_patched_name_is_reported(module_name: str, name: str) -> None:
    kept = tuple(n for n in NAMES[module_name] if n.split(".")[0] != name)

    def load(wanted: str) -> Any:
        if "." in name and wanted == module_name:
            return _module_with(tuple(n for n in NAMES[wanted] if n != name))
        return _module_with(kept if wanted == module_name else NAMES[wanted])

    assert f"{module_name}.{name}" in missing_names(load)
    with pytest.raises(EmulatorChangedError, match="pin ministack=="):
        check_names(load)


def test_missing_patched_module_is_reported() -> None:
    def load(wanted: str) -> Any:
        if wanted == "ministack.services.glue":
            raise ImportError(wanted)
        return _module_with(NAMES[wanted])

    assert missing_names(load) == ["ministack.services.glue"]


def test_exception_class_is_read_from_the_last_traceback() -> None:
    log = (
        "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'x'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'b.py', line 2\n    boom()\n"
        "lakesync.errors.Conflict: try again\n"
    )
    assert exception_class(log)[0] == "Conflict"


def test_log_without_a_traceback_gives_no_exception_class() -> None:
    assert exception_class("START\nEND\n") == ("", [])


ITEM = {"pk": {"S": "a"}, "sk": {"N": "10"}, "name": {"S": "row#7"}}
VALUES = {
    ":pk": {"S": "a"},
    ":nine": {"N": "9"},
    ":ten": {"N": "10.0"},
    ":row": {"S": "row#"},
    ":other": {"S": "b"},
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("pk = :pk", True),
        ("#p = :pk AND sk > :nine", True),
        ("pk = :pk and sk = :ten", True),
        ("pk = :pk AND sk < :nine", False),
        ("pk = :pk AND sk BETWEEN :nine AND :ten", True),
        ("pk = :pk AND begins_with(#n, :row)", True),
        ("pk = :other", False),
    ],
)
def test_compiled_key_condition_matches_as_in_dynamodb(
    expression: str,
    expected: bool,  # noqa: FBT001
) -> None:
    condition = compile_key_condition(expression)
    assert condition is not None
    assert condition(ITEM, VALUES, {"#p": "pk", "#n": "name"}) is expected


@pytest.mark.parametrize("expression", ["pk = :pk AND attribute_exists(sk)", "(pk = :pk)"])
def test_unknown_form_of_key_condition_is_left_to_the_emulator(expression: str) -> None:
    assert compile_key_condition(expression) is None


@pytest.mark.parametrize(
    ("operation", "request_body", "resource"),
    [
        ("GetDatabase", {"Name": "lake"}, "database/lake"),
        ("CreateDatabase", {"DatabaseInput": {"Name": "lake"}}, "database/lake"),
        ("GetTables", {"DatabaseName": "lake"}, "database/lake"),
        ("GetTable", {"DatabaseName": "lake", "Name": "rows"}, "table/lake/rows"),
        (
            "UpdateTable",
            {"DatabaseName": "lake", "TableInput": {"Name": "rows"}},
            "table/lake/rows",
        ),
        ("StartJobRun", {"JobName": "merge"}, "job/merge"),
        ("GetDatabases", {}, "catalog"),
    ],
)
def test_glue_call_maps_to_the_resource_that_aws_checks(
    operation: str, request_body: dict[str, Any], resource: str
) -> None:
    assert glue_resource(operation, json.dumps(request_body).encode()) == resource


def test_condition_keys_of_a_policy_simulation_are_parsed() -> None:
    member = "ContextEntries.member"
    parameters = {
        f"{member}.1.ContextKeyName": ["s3:prefix"],
        f"{member}.1.ContextKeyValues.member.1": ["claims/"],
        f"{member}.2.ContextKeyName": "aws:SourceAccount",
        f"{member}.2.ContextKeyValues.member.1": "1",
    }
    assert context_entries(parameters) == {"s3:prefix": "claims/", "aws:sourceaccount": "1"}
    assert context_entries({}) == {}


@pytest.mark.parametrize(
    ("asked", "action"),
    [
        ("sqs:SendMessageBatch", "sqs:SendMessage"),
        ("sqs:DeleteMessageBatch", "sqs:DeleteMessage"),
        ("sqs:SendMessage", "sqs:SendMessage"),
        ("states:StartBatch", "states:StartBatch"),
        (None, None),
    ],
)
def test_batch_action_maps_to_the_action_of_one_message(
    asked: str | None, action: str | None
) -> None:
    assert action_of_batch(asked) == action


def test_parameter_values_replace_references_at_any_depth() -> None:
    template = {
        "Fn": {"Layers": [{"Ref": "Layer"}], "Environment": {"A": {"Fn::If": ["C", {"Ref": "P"}]}}}
    }

    assert with_values(template, {"P": "7"}) == {
        "Fn": {"Layers": [{"Ref": "Layer"}], "Environment": {"A": {"Fn::If": ["C", "7"]}}}
    }


def test_joined_list_in_a_condition_becomes_text() -> None:
    def has(name: str) -> dict[str, Any]:
        return {"Fn::Not": [{"Fn::Equals": [{"Fn::Join": ["", {"Ref": name}]}, ""]}]}

    joined = with_lists_joined({"HasA": has("A"), "HasB": has("B")}, {"A": "x,y", "B": ""})
    assert joined == {
        "HasA": {"Fn::Not": [{"Fn::Equals": ["xy", ""]}]},
        "HasB": {"Fn::Not": [{"Fn::Equals": ["", ""]}]},
    }


def test_schedule_group_is_read_from_the_request() -> None:
    assert schedule_group(b'{"GroupName": "polls"}', {}) == "polls"
    assert schedule_group(b"", {"groupName": ["polls"]}) == "polls"
    assert schedule_group(b"", {}) == "default"


def test_repeated_parse_of_the_same_body_is_cached() -> None:
    parsed: list[str | bytes] = []

    def parse(text: str | bytes) -> object:
        parsed.append(text)
        return json.loads(text)

    loads = read_once(parse)
    first, second = b'{"a": 1}', b'{"a": 2}'

    assert [loads(first), loads(first), loads(second), loads(first)] == [
        {"a": 1},
        {"a": 1},
        {"a": 2},
        {"a": 1},
    ]
    assert parsed == [first, second, first]


def _archive(path: Path, **contents: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            archive.writestr(f"python/{name}.py", text)
    return path


def test_packages_with_equal_contents_are_unpacked_once(tmp_path: Path) -> None:
    first = _archive(tmp_path / "1.zip", a="a = 1", b="b = 2")
    folder = unpacked(first, tmp_path / "all")
    (folder / "mark").touch()
    again = unpacked(_archive(tmp_path / "2.zip", a="a = 1", b="b = 2"), tmp_path / "all")
    others = [
        unpacked(_archive(tmp_path / "3.zip", a="a = 1", b="b = 3"), tmp_path / "all"),
        unpacked(_archive(tmp_path / "4.zip", a="a = 1", c="b = 2"), tmp_path / "all"),
    ]

    assert again == folder
    assert (folder / "python" / "b.py").read_text() == "b = 2"
    assert len({folder, *others}) == 3
    assert not [each for each in others if (each / "mark").exists()]


def test_shared_package_survives_the_end_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / "own"
    (own / "code").mkdir(parents=True)
    with SharedPackage(str(_archive(tmp_path / "1.zip", a="a = 1"))) as package:
        assert package.namelist() == []
        package.extractall(str(own / "code"))
    kept = (own / "code").resolve()

    assert (own / "code" / "python" / "a.py").read_text() == "a = 1"
    shutil.rmtree(own)
    assert (kept / "python" / "a.py").read_text() == "a = 1"


def test_services_are_recognised_without_reading_their_descriptions() -> None:
    """A description of a service would cost more than all else here."""
    program = """
import botocore.session
from ministack.core import router
from tools.local_stack.emulator.request_patches import know_services_without_their_descriptions

def read(*_):
    raise SystemExit("a description was read")

know_services_without_their_descriptions()
session = botocore.session.Session
session.get_service_model = read
print(*[router._is_aws_service_name(name) for name in ("lakeformation", "servicequotas")])
"""
    answer = subprocess.run(
        [paths.EMULATOR_PYTHON, "-c", program],
        capture_output=True, text=True, check=False, cwd=paths.ROOT,
    )  # fmt: skip
    assert answer.stdout == "True True\n", answer.stderr


def test_template_properties_are_renamed_to_request_parameters() -> None:
    props = {"ApiId": "a", "ResponseTemplates": {"$default": "Bw=="}}
    assert as_request(props) == {"apiId": "a", "responseTemplates": {"$default": "Bw=="}}
