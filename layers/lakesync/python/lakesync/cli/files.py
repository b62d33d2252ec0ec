"""Reads the files that are given to commands."""

from __future__ import annotations

import json
import sys

from lakesync.cli.faults import UsageFault


def read_json(file: str) -> object:
    """Return the value in a JSON file; ``-`` is standard input.

    Raises:
        UsageFault: it is not JSON.
        OSError: it cannot be read.
    """
    try:
        return json.loads(read_text(file))
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
    text = read_text(file)
    try:
        return [json.loads(text)]
    except ValueError:
        lines = enumerate(text.split("\n"), start=1)  # a value may hold other line ends
    objects = []
    for number, line in lines:
        try:
            objects += [json.loads(line)] if line.strip() else []
        except ValueError as exc:
            raise UsageFault(f"{file}, line {number}: not JSON: {exc}") from exc
    return objects


def read_text(file: str) -> str:
    """Return the text of a UTF-8 file; ``-`` is standard input.

    Raises:
        UsageFault: it is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as source:  # noqa: PTH123 - as the shell names it
            return source.read()
    except UnicodeDecodeError as exc:
        raise UsageFault(f"{file} is not UTF-8 text: {exc.reason}") from exc
