"""Sources of dlt under test: an API that is played, a real database, files; one table in each."""

from __future__ import annotations

import itertools
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import dialects
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql

from lakesync.connectors import Outside, Storage
from lakesync.connectors.registry import configured
from lakesync.systems.dlt import DLT
from tests.support.hosts import LOOPBACK
from tests.support.lake import Objects
from tests.support.sources import SqlSource
from tests.support.vendors.server import Asked, Reply, VendorServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlalchemy.engine import URL

    from lakesync.connectors import Connector
    from tools.local_stack.databases import Database


class Acme(MySQLDialect_pymysql):
    """A dialect of somebody's, of which nobody here knows that it is MySQL's."""

    supports_statement_cache = True


class Filed(Acme):
    """A dialect that opens the database's file, whatever the host is."""

    supports_statement_cache = True

    def create_connect_args(self, url: URL, _translate_args: Any = None) -> Any:
        return [], {"path": url.database}


dialects.registry.register("acme", __name__, "Acme")
dialects.registry.register("filed", __name__, "Filed")
TOKEN = "a token of the API"
_numbers = itertools.count()


def made(settings: Mapping[str, Any], storage: Storage, outside: Outside) -> Connector:
    return DLT.make(configured(DLT, settings), storage, outside)


class Api(VendorServer):
    """An API of orders, in pages: by the time of their last change, or all of them by id."""

    table = "orders"

    def __init__(self, *, by_time: bool) -> None:
        super().__init__()
        self.by_time = by_time
        self.notices_deletions = True
        self.storage = Storage(Objects(), "g", f"api{next(_numbers)}")
        self.rows: dict[str, dict[str, Any]] = {}
        self.page_max = 3
        self.connectors: list[Connector] = []
        self.clock_us = 1_700_000_000_000_000
        self.auth: dict[str, Any] = {"type": "bearer", "token": {"secret": "token"}}
        self.resource: dict[str, Any] = {
            "name": self.table, "primary_key": "id",
            "write_disposition": "merge" if by_time else "replace",
            "columns": {"deleted": {"data_type": "bool", "hard_delete": True}},
            "endpoint": {"path": "orders", "params": {}, "data_selector": "orders"},
        }  # fmt: skip
        if by_time:
            self.resource["endpoint"] |= {
                "params": {"since": "{incremental.start_value}"},
                "incremental": {
                    "cursor_path": "updated", "row_order": "asc", "initial_value": "1970-01-01"
                },
            }  # fmt: skip

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "rest": {
                "client": {
                    "base_url": f"{self.url}/v1/", "auth": self.auth,
                    "paginator": {"type": "page_number", "base_page": 0, "total_path": "pages"},
                },
                "resources": [self.resource],
            },
            "secrets": {"token": TOKEN},
        }  # fmt: skip

    def connector(self, **more: Any) -> Connector:
        self.connectors.append(made(self.settings | more, self.storage, self.outside))
        return self.connectors[-1]

    def close(self) -> None:
        for connector in self.connectors:
            connector.close()
        super().close()

    def put(self, rows: Mapping[str, Any]) -> None:
        """Change rows, one after another."""
        for row_id, value in rows.items():
            self.clock_us += 1_001
            self.rows[row_id] = {
                "id": row_id, "value": value, "updated": self._now, "deleted": False
            }  # fmt: skip

    def delete(self, row_id: str) -> None:
        """Delete a row: it is told as deleted, or not any more."""
        self.clock_us += 1_001
        if self.by_time:
            self.rows[row_id] |= {"updated": self._now, "deleted": True}
        else:
            del self.rows[row_id]

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns.get("value")

    @property
    def _now(self) -> str:
        moment = datetime.fromtimestamp(self.clock_us // 1_000_000, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{self.clock_us % 1_000_000:06}Z"

    def answer(self, asked: Asked) -> Reply:
        if asked.path == "/oauth/token":
            return Reply(200, {"access_token": TOKEN, "expires_in": 60})
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply(401, {"error": "who are you"})
        parts = asked.path.split("/")
        if parts[-1] == "lines":
            lines = [{"id": f"{parts[3]}-{n}", "text": f"line {n}"} for n in range(2)]
            return Reply(200, {"lines": lines, "pages": 1})
        if asked.path != "/v1/orders":
            return Reply(404, {"error": "there is nothing here"})
        rows = [
            row
            for row in self.rows.values()
            if (row["updated"] or "~") >= asked.query.get("since", "")
        ]
        rows.sort(key=lambda row: str(row["updated" if self.by_time else "id"] or "~"))
        start = int(asked.query.get("page", 0)) * self.page_max
        pages = -(-len(rows) // self.page_max)
        shown = rows[start : start + self.page_max]
        if not self.by_time:
            shown = [{"id": row["id"], "value": row["value"]} for row in shown]
        return Reply(200, {"orders": shown, "pages": pages})


class DltSql(SqlSource):
    """A table of a real database: by its times with deletions marked, or replaced."""

    def __init__(self, database: Database, kind: str, *, by_time: bool, driver: str = "") -> None:
        super().__init__(database, kind, by_time=by_time)
        self.by_time = by_time
        self.notices_deletions = True
        self.run(f"ALTER TABLE {self.table} ADD COLUMN deleted boolean")
        hints: dict[str, Any] = {"write_disposition": "replace"}
        if by_time:
            hints = {
                "write_disposition": "merge",
                "columns": {"deleted": {"hard_delete": True, "data_type": "bool"}},
                "incremental": {"cursor_path": "changed", "row_order": "asc"},
            }  # fmt: skip
        self.settings = {
            "sqlDatabase": {
                "kind": "postgresql" if self.is_postgres else "mysql",
                "host": database.host, "port": database.port, "database": database.database,
                "user": database.user, "password": {"secret": "password"}, "tls": "off",
            },
            "secrets": {"password": database.password},
            "tables": [{"name": self.table, "hints": hints}],
        }  # fmt: skip
        if driver:
            given = database
            place = f"{given.user}:{given.password}@{given.host}:{given.port}/{given.database}"
            self.settings["sqlDatabase"] = {"url": {"secret": "url"}, "tls": "off"}
            self.settings["secrets"] = {"url": f"{driver}://{place}"}

    def connector(self, **more: Any) -> Connector:  # type: ignore[override]  # dlt's
        return made(self.settings | more, self.storage, Outside(databases=LOOPBACK))

    def put(self, rows: Mapping[str, Any]) -> None:
        for row_id, value in rows.items():
            self.run(f"DELETE FROM {self.table} WHERE id = %s", int(row_id))  # noqa: S608
            self.run(
                f"INSERT INTO {self.table} VALUES (%s, %s, {self.now}, false)",  # noqa: S608
                int(row_id),
                value,
            )

    def delete(self, row_id: str) -> None:
        change = f"UPDATE {self.table} SET changed = {self.now}, deleted = true"  # noqa: S608
        statement = change if self.by_time else f"DELETE FROM {self.table}"  # noqa: S608
        self.run(f"{statement} WHERE id = %s", int(row_id))


class Folder:
    """A folder of files: one for all that is put at once."""

    table = "orders"
    notices_deletions = True

    def __init__(self, folder: Path, kind: str = "jsonl") -> None:
        self.folder = folder
        self.kind = kind
        self.storage = Storage(Objects(), "g", f"folder{next(_numbers)}")
        self.number = 0
        self.outside = Outside((f"file://{folder}",))
        self.settings: dict[str, Any] = {
            "filesystem": {
                "bucketUrl": f"file://{folder}",
                "files": [{"name": self.table, "glob": f"**/*.{kind}", "format": kind}],
            },
            "tables": [{
                "name": self.table,
                "hints": {
                    "primary_key": "id", "write_disposition": "merge",
                    "columns": {"gone": {"data_type": "text", "hard_delete": True}},
                },
            }],
        }  # fmt: skip

    def connector(self, **more: Any) -> Connector:
        return made(self.settings | more, self.storage, self.outside)

    def put(self, rows: Mapping[str, Any]) -> None:
        self.write([{"id": row_id, "value": value} for row_id, value in rows.items()])

    def delete(self, row_id: str) -> None:
        self.write([{"id": row_id, "gone": "yes"}])

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write a file, a second after the one before."""
        self.number += 1
        path = self.folder / f"{9_999 - self.number}.{self.kind}"
        if self.kind == "csv":
            names = list(rows[0])
            lines = [",".join(names), *(",".join(map(str, row.values())) for row in rows)]
        else:
            lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n")
        written = 1_700_000_000 + self.number
        os.utime(path, (written, written))

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns.get("value")
