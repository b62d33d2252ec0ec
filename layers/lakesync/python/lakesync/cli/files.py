"""Reads the files that are given to commands: UTF-8, with or without a byte order mark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from lakesync.cli.faults import UsageFault


def read_json(file: str) -> object:
    """Return the value in a JSON file; ``-`` is standard input.

    Raises:
        UsageFault: it is not JSON.
        OSError: it cannot be read.
    """
    try:
        return json_of(read_text(file))
    except ValueError as exc:
        raise UsageFault(f"{file} is not JSON: {exc}") from exc


def read_yaml(file: str) -> object:
    """Return the value in a YAML or JSON file; ``-`` is standard input.

    Raises:
        UsageFault: it is neither.
        OSError: it cannot be read.
    """
    import yaml

    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as exc:
        raise UsageFault(f"{file} is not YAML: {exc}") from exc


def read_objects(file: str) -> list[object]:
    """Return the JSON values of a file: one, or one per line.

    Raises:
        UsageFault: a line is not JSON.
        OSError: it cannot be read.
    """
    return objects_in(read_text(file), file)


def objects_in(text: str, name: str) -> list[object]:
    """Return the JSON values of a text: one, or one per line.

    Raises:
        UsageFault: a line is not JSON; ``name`` is what was read.
    """
    try:
        return [json_of(text)]
    except ValueError:
        lines = enumerate(text.split("\n"), start=1)  # a value may hold other line ends
    objects = []
    for number, line in lines:
        try:
            objects += [json_of(line)] if line.strip() else []
        except ValueError as exc:
            raise UsageFault(f"{name}, line {number}: not JSON: {exc}") from exc
    return objects


def json_of(text: str) -> object:
    """Return the value of JSON text.

    Raises:
        ValueError: it is not JSON; NaN and Infinity, which Python would read, are none.
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON: write null, or text in quotes")


def read_text(file: str) -> str:
    """Return the text of a UTF-8 file; ``-`` is standard input.

    Raises:
        UsageFault: it is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode("utf-8-sig")  # whatever the system's own encoding is
    except UnicodeDecodeError as exc:
        raise UsageFault(f"{file} is not UTF-8 text: {exc.reason}") from exc
