"""How tests run commands; and a line for each, with what it reaches to carry it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typer.main import get_command
from typer.testing import CliRunner, Result

from lakesync.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def run(*words: str, text: str | bytes | None = None) -> Result:
    """Run a command, with a text on standard input."""
    return CliRunner().invoke(app, words, input=text)


def lines(done: Result) -> list[Any]:
    """Return what a command printed as lines of JSON."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def answers(*words: str) -> list[Any]:
    """Return what a command that succeeds prints as lines of JSON."""
    done = run(*words)
    assert done.exit_code == 0, done.output
    return lines(done)


class Line(NamedTuple):
    """How a command is tried."""

    words: str
    """What follows the command's name; ``GATEWAY`` is the gateway."""
    reaches: str = "gateway"
    """``gateway`` by HTTP, ``aws``, ``gateway aws`` for both, or nothing."""
    makes: bool = False
    """It may be the first command of a gateway, or is of no gateway."""


_AWS: Final = "aws"
_BOTH: Final = "gateway aws"
_DATABASES: Final = "--from-env FROM_URL --to-env TO_URL"

LINES: Final[dict[str, Line]] = {
    "token": Line("", "", makes=True),
    "secret": Line("", "", makes=True),
    "push": Line("--table todos --row t1 --set a=1", makes=True),
    "pull": Line(""),
    "flush": Line(""),
    "flushing show": Line(""),
    "flushing put": Line("flushing.json", makes=True),
    "query": Line("'select * from todos'", _AWS),
    "history": Line("todos t1", _AWS),
    "diff": Line("todos --from 2026-11-20", _AWS),
    "status": Line("", _BOTH),
    "doctor": Line("", _AWS, makes=True),
    "smoke": Line("", makes=True),
    "replay": Line("claims", _AWS),
    "restored": Line("restored --no-record", _AWS, makes=True),
    "codegen": Line(""),
    "audit": Line(""),
    "cost": Line("", "", makes=True),
    "schema list": Line(""),
    "schema show": Line("todos"),
    "schema put": Line("--table todos --column a:integer", makes=True),
    "schema strict": Line("off", makes=True),
    "rules check": Line("rules.json", makes=True),
    "rules try": Line("rules.json --as {}"),
    "rules put": Line("rules.json", makes=True),
    "rules show": Line(""),
    "rows restore": Line("todos --to 2026-11-20", _AWS),
    "tables list": Line(""),
    "tables place": Line("todos side", makes=True),
    "tables remove": Line("todos"),
    "access list": Line(""),
    "access show": Line("phone"),
    "access revoke": Line("user ann"),
    "access restore": Line("user ann"),
    "access release": Line("phone"),
    "clients list": Line("GATEWAY"),
    "clients disconnect": Line("GATEWAY phone"),
    "clients revoke": Line("GATEWAY phone"),
    "client move": Line("app.db", "", makes=True),
    "gateways export": Line("GATEWAY --to exported", _AWS),
    "gateways find-row": Line("GATEWAY todos t1", _AWS),
    "gateways erase": Line("GATEWAY todos t1 --yes", _BOTH),
    "gateways delete": Line("GATEWAY --yes"),
    "stack delete": Line("trial", _AWS, makes=True),
    "databases copy": Line(_DATABASES, "", makes=True),
    "databases compare": Line(_DATABASES, "", makes=True),
    "connectors types": Line("", makes=True),
    "connectors new": Line("shop", "", makes=True),
    "databases new": Line("shop", "", makes=True),
    "connectors list": Line(""),
    "connectors show": Line("shop"),
    "connectors add": Line("connector.json", makes=True),
    "connectors test": Line("connector.json", makes=True),
    "connectors configure": Line("shop settings.json"),
    "connectors check": Line("shop"),
    "connectors run": Line("shop"),
    "connectors reset": Line("shop"),
    "connectors pause": Line("shop"),
    "connectors resume": Line("shop"),
    "connectors remove": Line("shop"),
    "actions list": Line(""),
    "actions add": Line("handler.json", makes=True),
    "actions remove": Line("shipping"),
    "actions run": Line("shipping ship"),
    "lake status": Line("", _AWS),
    "lake maintain": Line("", _AWS),
    "lake repair": Line("", _AWS),
    "lake rebuild": Line("--table todos", _AWS),
    "lake views": Line("", _AWS),
    "lake share": Line("todos", _AWS, makes=True),
    "lake unshare": Line("todos", _AWS, makes=True),
    "destinations list": Line(""),
    "destinations check": Line("warehouse destination.json", makes=True),
    "destinations add": Line("warehouse destination.json", makes=True),
    "destinations pause": Line("warehouse"),
    "destinations resume": Line("warehouse"),
    "destinations backfill": Line("warehouse"),
    "destinations replay": Line("warehouse"),
    "destinations remove": Line("warehouse"),
    "flows list": Line(""),
    "flows plan": Line("flows.json", makes=True),
    "flows apply": Line("flows.json", makes=True),
    "flows status": Line("orders"),
    "flows run": Line("orders"),
    "flows pause": Line("orders"),
    "flows resume": Line("orders"),
    "flows backfill": Line("orders"),
    "flows remove": Line("orders"),
    "quota show": Line("", _AWS),
    "quota set": Line("--pushes 3", _AWS, makes=True),
    "quota reset": Line("", _AWS),
    "checkpoint list": Line("", _AWS),
    "checkpoint show": Line("", _AWS),
    "checkpoint build": Line("", _AWS),
}
"""By the command's name."""


def reaching(place: str) -> dict[str, Line]:
    return {name: line for name, line in LINES.items() if place in line.reaches.split()}


def commands() -> dict[str, Any]:
    return dict(_below(get_command(app), ()))


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield " ".join(path), command
        return
    for name, each in below.items():
        yield from _below(each, (*path, name))


def write_files(folder: Path) -> None:
    flow = {"name": "orders", "source": {"gateway": {}}, "destination": {"database": "w"}}
    bodies: dict[str, object] = {
        "rules.json": {
            "version": 1,
            "buckets": [{"name": "all", "tables": ["todos"], "filters": []}],
        },
        "connector.json": {"name": "shop", "type": "http", "configuration": {}},
        "settings.json": {},
        "handler.json": {"name": "shipping", "type": "webhook", "configuration": {}},
        "destination.json": {"kind": "postgres", "secret": "warehouse"},
        "flows.json": {"flows": [flow]},
        "flushing.json": {"everyS": 1800},
    }
    for name, body in bodies.items():
        (folder / name).write_text(json.dumps(body), "utf-8")
