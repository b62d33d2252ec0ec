"""The example app of the browser, `examples/todos-web`: built, served, two people who sign in.

Its lists have a keeper, by whom the rules decide who changes them: both, or one of the two. What
one writes into a list that the other keeps is refused, and waits in the app for a decision.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

from tools.local_stack import paths
from tools.local_stack.pages import serve_pages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.setting import Setting

APP: Final = paths.ROOT / "examples" / "todos-web"
WITHOUT: Final = "LAKESYNC_WITHOUT_NODE"
"""Holds the reason why Node.js cannot be had; the app is left out with it."""

TOKEN_S: Final = 30 * 24 * 3_600
"""A window stays open for days, and nobody gives it another token."""

LISTS: Final = {
    "table": "lists",
    "columns": [
        {"name": "name", "type": "string"},
        {"name": "icon", "type": "string"},
        {"name": "keeper", "type": "string"},
        {"name": "place", "type": "number"},
    ],
}
TODOS: Final = {
    "table": "todos",
    "columns": [
        {"name": "list", "type": "string"},
        {"name": "title", "type": "string"},
        {"name": "note", "type": "string"},
        {"name": "price", "type": "decimal(8,2)"},
        {"name": "done", "type": "boolean"},
        {"name": "photo", "type": "string"},
        {"name": "keeper", "type": "string"},
        {"name": "place", "type": "number"},
    ],
}
RULES: Final = {
    "version": 1,
    "buckets": [
        {
            "name": "both see everything, and change what is theirs to change",
            "tables": ["lists", "todos"],
            "filters": [],
            "write": [{"column": "keeper", "op": "in", "value": "jwt:keeps"}],
        }
    ],
}
PEOPLE: Final = {"ada": "Ada", "grace": "Grace"}
"""Who may sign in: their ids, which are keepers, and their names."""


def declare(ask: Callable[..., Any]) -> None:
    """Register the app's tables and rules, by what calls administrative routes of its gateway."""
    for schema in (LISTS, TODOS):
        ask("/admin/schema", schema)
    ask("/admin/sync-rules", RULES)


def configuration(setting: Setting) -> dict[str, Any]:
    """What the page is told of the gateway, and of those who may sign in."""
    people = [
        {
            "id": person,
            "name": name,
            "token": setting.token(
                person, rule_claims={"keeps": ("both", person)}, lifetime_s=TOKEN_S
            ),
        }
        for person, name in PEOPLE.items()
    ]
    address = {"url": setting.url, "socketUrl": setting.socket_url, "gateway": setting.gateway}
    return {**address, "people": people}


def missing() -> str:
    """Why the app cannot be built here; empty if it can."""
    reason = os.environ.get(WITHOUT)
    if reason:
        return f"without Node.js: {reason}"
    return (
        "" if shutil.which("npm") else "Node.js is missing: install Node 20.19 or newer, with npm"
    )


def build(log: Path) -> str:
    """Build the app into its folder ``dist``; returns why it could not be built, or nothing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    modules, lock = APP / "node_modules", APP / "package-lock.json"
    commands = [["npm", "run", "--silent", "build"]]
    if not modules.exists() or modules.stat().st_mtime < lock.stat().st_mtime:
        commands.insert(0, ["npm", "ci", "--omit=dev", "--no-fund", "--no-audit"])
    with log.open("w") as output:
        for command in commands:
            done = subprocess.run(
                command, cwd=APP, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode:
                return f"`{' '.join(command)}` failed: read {log}"
            modules.touch()
    return ""


def copy(setting: Setting, pages: Path) -> None:
    """Copy the app that was built, with its configuration, to where it is served from."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(APP / "dist", pages)
    (pages / "config.json").write_text(json.dumps(configuration(setting)), "utf-8")


def serve(setting: Setting, folder: Path) -> str:
    """Serve the app that was built, for as long as the stack of ``folder`` runs; its address."""
    copy(setting, folder / "todos-web")
    return serve_pages(folder, folder / "todos-web")
