"""The command: `python -m tools.demo`, which is `make demo`."""

from __future__ import annotations

import argparse
import errno
import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lakesync.analysis.connection import Aws, Connection, UsageFault
from lakesync.errors import LakeSyncError
from tools.demo import todos
from tools.demo.lake import DemoLake
from tools.demo.screen import Screen
from tools.demo.second_act import SecondAct
from tools.demo.setting import Setting
from tools.demo.story import Outcome, Story
from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.stack import PORT, Stack, up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.demo.evidence import Verdict

_INTERRUPTED: Final = 130


def main(arguments: list[str]) -> int:
    """Run the story; 0 when everything was as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT, help="the emulator's port")
    parser.add_argument("--days", type=int, default=7, help="days of flights, from 1 January 2013")
    options = parser.parse_args(arguments)
    screen = Screen()
    try:
        return _run(screen, options.port, options.days)
    except KeyboardInterrupt:
        _say("\ninterrupted: `make demo` starts afresh, `make down` stops what runs.")
        return _INTERRUPTED
    except (LocalStackError, LakeSyncError, UsageFault) as error:
        _say(f"error: {error}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        free = shutil.disk_usage(paths.ROOT).free // 1_000_000
        _say(f"error: the disk is full ({free} MB free): make room, then run `make demo` again.")
    return 1


def _run(screen: Screen, port: int, days: int) -> int:
    screen.title("LakeSync: a week of flights, edited offline by two who see their own alone")
    with screen.step("start the local AWS, sam build, sam deploy") as step:
        stack = up(paths.LOCAL, port=port)
        step.result = f"stack {stack.stack} at {stack.endpoint}"
    # Its own gateway, so that running the demo again finds nothing of the last time.
    gateway = f"{stack.gateway}-{datetime.now(UTC):%m%d-%H%M%S}"
    aws = Aws(_connection(stack, gateway))
    setting = Setting(stack.http, gateway, stack.jwt_secret, paths.LOCAL / "demo", stack.sockets)
    lake = DemoLake(aws, stack.http, gateway, lambda: setting.token("demo", "admin"))
    outcome = Story(setting, lake, screen, days).tell()
    _show(screen, outcome.verdicts)
    second = _second_act(screen, stack, f"{gateway}-db")
    page = _page(screen, stack, f"{gateway}-todos")
    _invite(screen, stack, setting, outcome, page)
    return 0 if outcome.right and all(verdict.right for verdict in second) else 1


def _second_act(screen: Screen, stack: Stack, gateway: str) -> tuple[Verdict, ...]:
    screen.title("Second act: a PostgreSQL is captured, a client edits, MySQL and the lake follow")
    aws = Aws(_connection(stack, gateway))
    setting = Setting(stack.http, gateway, stack.jwt_secret, paths.LOCAL / "demo-db")
    lake = DemoLake(aws, stack.http, gateway, lambda: setting.token("demo", "admin"))
    verdicts = SecondAct(setting, lake, aws, screen).tell()
    _show(screen, verdicts)
    return verdicts


def _page(screen: Screen, stack: Stack, gateway: str) -> str:
    """Serve the example app of the browser; its address, or nothing where it cannot be built."""
    with screen.step("build the example app of the browser, and serve it") as step:
        failure = todos.missing() or todos.build(paths.LOCAL / "logs" / "todos-web.log")
        if failure:
            step.result = f"left out, {failure}"
            return ""
        setting = Setting(
            stack.http, gateway, stack.jwt_secret, paths.LOCAL / "demo", stack.sockets
        )
        lake = DemoLake(
            Aws(_connection(stack, gateway)),
            stack.http,
            gateway,
            lambda: setting.token("demo", "admin"),
        )
        todos.declare(lake.ask)
        page = todos.serve(setting, paths.LOCAL)
        step.result = page
    return page


def _connection(stack: Stack, gateway: str) -> Connection:
    return Connection(
        gateway=gateway,
        url=stack.http,
        stack=stack.stack,
        endpoint=stack.endpoint,
        region=stack.region,
        jwt_secret=stack.jwt_secret,
        emulated=True,
    )


def _show(screen: Screen, verdicts: Sequence[Verdict]) -> None:
    rows = [(verdict.holder, verdict.rows, verdict.sentence) for verdict in verdicts]
    screen.table("Who holds what", ("holder", "rows", "against the source data"), rows)


def _invite(screen: Screen, stack: Stack, setting: Setting, outcome: Outcome, page: str) -> None:
    lakesync = _command()
    before = outcome.before.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    hello = "select _id, remark from flights where remark = 'hello'"
    sql = "select origin, count(*) as flights, count(arr_time) as landed from flights group by 1"
    for sentence in (
        f"done after {screen.elapsed_s:.0f} s; the stack keeps running.",
        "",
        f"gateway      {stack.http}",
        f"sockets      {stack.sockets}",
        f"API          {stack.http}/openapi.json",
        f"AWS          {stack.endpoint}",
        f"a token      {setting.token('you')}",
        "",
        *((f"Try it in the browser: {page} (two windows)", "") if page else ()),
        "Try next:",
        "",
        f"  export LAKESYNC_GATEWAY={setting.gateway}",
        f'  {lakesync} query "{sql}"',
        f'  {lakesync} query "{sql}" --as-of {before}',
        f"  {lakesync} push --table flights --row 2013-01-01/UA1545/EWR --set remark=hello",
        f"  {lakesync} flush --wait",
        f'  {lakesync} rules show | {lakesync} rules try - --as \'{{"origin": ["LGA"]}}\'',
        f'  {lakesync} query "{hello}"',
        f"  {lakesync} status",
        "  make down",
    ):
        screen.line(sentence)


def _command() -> str:
    script: Path = paths.ROOT / ".venv" / "bin" / "lakesync"
    return str(script.relative_to(paths.ROOT)) if script.exists() else "lakesync"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
