"""The Node.js process in which clients of a simulation live: started once, for many seeds.

Its answers come from the built JavaScript client, or from a copy of it in which one text is another
(`Mutation`): so a deliberate fault needs no switch in the product.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.node import REASON
from tests.support.repository import ROOT

CLIENT: Final = ROOT / "clients" / "js"
SCRIPT: Final = "test/simulated.js"


class NodeError(Exception):
    """The process ended, or JavaScript threw what no operation may throw."""


class Mutation(NamedTuple):
    """Texts of a built module of the client that are replaced by others."""

    module: str
    """Its name, such as ``pages``."""
    changes: tuple[tuple[str, str], ...]
    """Each text, which is there exactly once, and what takes its place."""


mutation: Mutation | None = None
"""What the next request is answered with; deliberate faults put theirs here."""


def is_there() -> bool:
    """Return whether JavaScript can be run: it cannot where somebody has said why not."""
    return not os.environ.get(REASON)


def built() -> Path:
    """Return the folder of the built client.

    Raises:
        NodeError: it is not built, or older than its sources.
    """
    folder = CLIENT / "build"
    script = folder / SCRIPT
    sources = [*CLIENT.glob("src/**/*.ts*"), *CLIENT.glob("test/**/*.ts*")]
    newest_s = max(path.stat().st_mtime for path in sources)
    if not script.exists() or script.stat().st_mtime < newest_s:
        raise NodeError("the JavaScript client is not built: run tools/javascript.sh build")
    return folder


def mutated(of: Mutation) -> Path:
    """Return a folder with the built client, with a mutation; its texts have to be there once.

    Raises:
        NodeError: one is not.
    """
    root = Path(tempfile.mkdtemp(prefix="lakesync-mutation-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "tests").symlink_to(ROOT / "tests")  # where its own tests find the vectors
    home = root / "clients" / "js"
    shutil.copytree(built(), home / "build")
    shutil.copy(CLIENT / "package.json", home)
    (home / "node_modules").symlink_to(CLIENT / "node_modules")
    path = home / "build" / "src" / f"{of.module}.js"
    text = path.read_text("utf-8")
    for old, new in of.changes:
        if text.count(old) != 1:
            raise NodeError(f"{path.name} has {text.count(old)} times: {old}")
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return home / "build"


class Node:
    """One process; requests and answers are lines of JSON."""

    def __init__(self, build: Path) -> None:
        node = shutil.which("node")
        if node is None:
            raise NodeError(f"Node.js 20 or newer is missing; or set {REASON} to the reason")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [node, "--enable-source-maps", str(build / SCRIPT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            encoding="utf-8",
        )  # fmt: skip

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its answer.

        Raises:
            NodeError: there is none.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            stop()  # the next seed finds another
            raise NodeError(f"Node.js ended: {said}")
        answer: dict[str, Any] = json.loads(line, object_hook=_revived)
        if "bug" in answer:
            raise NodeError(answer["bug"])
        return answer

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def _revived(fields: dict[str, Any]) -> Any:
    """Return what JSON cannot say."""
    if fields.keys() == {"$integer"}:
        return int(fields["$integer"])
    return base64.b64decode(fields["$bytes"]) if fields.keys() == {"$bytes"} else fields


_running: dict[Mutation | None, Node] = {}


def running() -> Node:
    """Return the process with the present mutation; there is one at a time."""
    if mutation not in _running:
        stop()
        build = built() if mutation is None else mutated(mutation)
        _running[mutation] = Node(build)
    return _running[mutation]


@atexit.register
def stop() -> None:
    """End what runs."""
    while _running:
        _running.popitem()[1].end()
