"""An end-to-end check on a scratch gateway: two clients, sync rules, a flush, the lake.

Each step returns what it found, or raises `Failed` with what it found instead. In any case `delete`
removes the gateway, or `remove` the rows if the gateway is somebody's.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self

from lakesync.core.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.analysis.connection import Aws
    from lakesync.client import Client

SCRATCH: Final = "lakesync-smoke"
"""The beginning of the gateway's name, if none is given; the rest is random."""
TABLE: Final = "smoke"
RULES: Final[dict[str, Any]] = {
    "version": 1,
    "buckets": [
        {
            "name": "smoke",
            "tables": [TABLE],
            "filters": [{"column": "shown", "op": "eq", "value": True}],
            # Anyone may write, or nobody could delete the row that nobody sees.
            "write": [],
        }
    ],
}
_NAME_CHARS: Final = 12


class Failed(Exception):
    """A step found something unexpected; the text says what, and where to look."""


@dataclass(frozen=True)
class Scratch:
    """The scratch gateway, and how to reach it.

    Attributes:
        url: the gateways' address.
        gateway: its id.
        token: returns a token for a user, by name and role.
        user: the user of both clients.
    """

    url: str
    gateway: str
    token: Callable[[str, str], str]
    user: str

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        from lakesync.cli.session import call

        return call(self.url, self.token(self.user, "admin"), method, path, body)


class Job:
    """The steps, in their order. Close it at the end."""

    def __init__(self, scratch: Scratch, run: str, folder: Path) -> None:
        self._scratch = scratch
        self._folder = folder
        self._open = ExitStack()
        self._asked = self._pushed = False
        self.shown, self.hidden = f"{run}-shown", f"{run}-hidden"
        self._writer, self._reader = self._client("writer"), self._client("reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _client(self, part: str) -> Client:
        from lakesync.client import Client, HttpTransport

        # A client belongs to its first user, so its id is derived from the user's name.
        name = sha256(self._scratch.user.encode()).hexdigest()[:_NAME_CHARS]
        transport = self._open.enter_context(
            HttpTransport(
                self._scratch.url,
                self._scratch.gateway,
                token=lambda: self._scratch.token(self._scratch.user, "client"),
            )
        )
        path = self._folder / f"{part}.db"
        client = Client(path, client_id=f"smoke-{name}-{part}", transport=transport)
        return self._open.enter_context(client)

    def rules(self) -> str:
        """Save sync rules that show one of two rows, unless an existing gateway is used."""
        path = f"/admin/sync-rules/{self._scratch.gateway}"
        before = self._scratch.ask("GET", path).get("buckets") or []
        if before and before != RULES["buckets"]:
            raise Failed(
                f"the gateway {self._scratch.gateway} is in use: it has rules of its own; name "
                "another by --scratch"
            )
        self._asked = True
        self._scratch.ask("POST", path, RULES)
        return "sync rules are in force"

    def push(self) -> str:
        for row, shown in ((self.shown, True), (self.hidden, False)):
            self._writer.insert(TABLE, row, {"shown": shown, "n": 1}).unwrap()
        self._pushed = True
        accepted = _synced(self._writer)
        if accepted != 2:  # noqa: PLR2004 - the two above
            raise Failed(f"{plural(accepted, 'row')} of 2 accepted; see the log of PushFunction")
        return "2 rows are accepted"

    def pull(self) -> str:
        """Pull as another client: it receives the row that the rules show, and not the other."""
        _synced(self._reader)
        seen = self._rows_of(self._reader) & {self.shown, self.hidden}
        if seen != {self.shown}:
            raise Failed(
                f"another client sees {', '.join(sorted(seen)) or 'no row'}, and not the one that "
                "the rules show; see the log of PullFunction"
            )
        return "another client sees the row that the rules show, and not the other"

    def edit(self) -> str:
        """Edit two columns of the row, one by each client, and check both edits at both clients."""
        self._writer.update(TABLE, self.shown, {"n": 2}).unwrap()
        self._reader.update(TABLE, self.shown, {"note": "seen"}).unwrap()
        for client in (self._writer, self._reader, self._writer):
            _synced(client)
        for client in (self._writer, self._reader):
            row = next(iter(self._read(client, self.shown)), {})
            if (row.get("n"), row.get("note")) != (2, "seen"):
                raise Failed(f"an edit is missing after both have synced: {row}")
        return "two clients edited one row, and both edits are there"

    def flush(self) -> str:
        done = self._scratch.ask("POST", f"/admin/flush/{self._scratch.gateway}")
        if not done.get("deltas"):
            # The schedule, or a threshold, may have come first.
            return "nothing was left to flush: the schedule was quicker"
        return f"{plural(done['deltas'], 'delta')} are flushed"

    def lake(self, aws: Aws, timeout_s: int) -> str:
        """Wait until the lake's table holds both rows."""
        from lakesync.analysis.lake import ROW_ID, Lake
        from lakesync.cli.commands.backlog import wait_for_lake

        wait_for_lake(aws, self._scratch.gateway, timeout_s)
        lake = Lake(aws, self._scratch.gateway)
        rows = lake.read(TABLE)[ROW_ID].to_pylist() if TABLE in lake.names() else []
        missing = sorted({self.shown, self.hidden} - set(rows))
        if missing:
            raise Failed(f"the lake lacks {', '.join(missing)}; see the Glue job's log")
        return "both rows are in the lake"

    def delete(self) -> str:
        from lakesync.errors import NotFound

        path = f"/admin/gateways/{self._scratch.gateway}"
        with suppress(NotFound):
            while self._asked and not self._scratch.ask("DELETE", path)["gone"]:
                pass
        return f"the gateway {self._scratch.gateway} is deleted"

    def remove(self) -> str:
        if self._pushed:
            for row in (self.shown, self.hidden):
                self._writer.delete(TABLE, row).unwrap()
            _synced(self._writer)
            _synced(self._reader)
            if left := self._rows_of(self._reader) & {self.shown, self.hidden}:
                raise Failed(f"another client still sees {', '.join(sorted(left))}")
        return f"the rows are deleted; the gateway {self._scratch.gateway} stays"

    def _rows_of(self, client: Client) -> set[str]:
        return {str(row["_row_id"]) for row in self._read(client)}

    def _read(self, client: Client, row: str | None = None) -> list[dict[str, Any]]:
        if TABLE not in client_tables(client):
            return []
        where = "" if row is None else " where _row_id = ?"
        rows = client.query(f"select * from {TABLE}{where}", [] if row is None else [row])  # noqa: S608 - a constant
        return list(rows.unwrap())


def client_tables(client: Client) -> set[str]:
    rows = client.query("select name from sqlite_master where type in ('table', 'view')").unwrap()
    return {str(row["name"]) for row in rows}


def _synced(client: Client) -> int:
    """Sync, and return the number of accepted edits; raise what failed, or was refused."""
    summary = client.sync().unwrap()
    for error in (summary.push_error, summary.pull_error):
        if error is not None:
            raise error
    refused = client.quarantined().unwrap()
    if refused:
        raise Failed(f"an edit was refused: {refused[0]}")
    return summary.pushed.accepted
