"""The databases whose changes are captured, and what an application says to each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.support.capturing import BinlogWorld, CaptureWorld

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.local_stack.databases import Database


@dataclass(frozen=True)
class Captured:
    """A database with two tables, both with texts so long that they are kept apart."""

    world_of: type[CaptureWorld]
    tables: Mapping[str, str]
    statements: Mapping[str, Sequence[str]]
    """What is said for each kind of change."""
    at_first: Sequence[str] = field(default=())

    def world(self, database: Database, ahead_ms: int = 0) -> CaptureWorld:
        """Return a world of the two tables; the source's clock may be ahead of ours."""
        world = self.world_of(database, dict(self.tables), ahead_ms)
        if self.at_first:
            world.run(*(each.format(**world.tables) for each in self.at_first))
        return world

    def said(self, world: CaptureWorld, kind: str, key: int, other: int) -> list[str]:
        values = {"key": key, "other": other, "digit": other % 10, "odd": key % 2}
        return [
            template.format(**world.tables, **values, last=6 + other)
            for template in self.statements[kind]
        ]


_EITHER: Final = {
    "big": (
        "UPDATE {items} SET big = repeat('{digit}', 3000)",
        "UPDATE {pairs} SET big = repeat('{digit}', 3000)",
    ),
    "delete": ("DELETE FROM {items} WHERE id = {key}", "DELETE FROM {pairs} WHERE b = {key}"),
    "truncate": ("TRUNCATE {items}",),
    "add": ("ALTER TABLE {items} ADD COLUMN IF NOT EXISTS extra{odd} int DEFAULT {other}",),
    "drop": ("ALTER TABLE {items} DROP COLUMN IF EXISTS extra{odd}",),
}
_POSTGRES: Final = {
    "put": (
        (
            "INSERT INTO {items} (id, value) VALUES ({key}, '{other}') "
            "ON CONFLICT (id) DO UPDATE SET value = '{other}'"
        ),
        (
            "INSERT INTO {pairs} VALUES ('k', {key}, {other}.5, repeat('{digit}', 3000)) "
            "ON CONFLICT (a, b) DO UPDATE SET value = {other}"
        ),
    ),
    "touch": (
        "UPDATE {items} SET flag = NOT flag::boolean WHERE id >= {key}",
        "UPDATE {pairs} SET value = {other} WHERE b >= {key}",
    ),
    "move": (
        (
            "UPDATE {items} SET id = {other} WHERE id = {key} "
            "AND NOT EXISTS (SELECT FROM {items} WHERE id = {other})"
        ),
        (
            "UPDATE {pairs} SET b = {other} WHERE b = {key} "
            "AND NOT EXISTS (SELECT FROM {pairs} WHERE b = {other})"
        ),
    ),
    "many": (
        (
            "INSERT INTO {items} (id, value, big) SELECT n, 'many', repeat('{digit}', 3000) "
            "FROM generate_series(7, {last}) n ON CONFLICT (id) DO UPDATE SET value = 'again'"
        ),
    ),
    "retype": ("ALTER TABLE {items} ALTER flag TYPE text",),
}
_MARIADB: Final = {
    "put": (
        (
            "INSERT INTO {items} (id, value) VALUES ({key}, '{other}') "
            "ON DUPLICATE KEY UPDATE value = '{other}'"
        ),
        (
            "INSERT INTO {pairs} VALUES ('k', {key}, {other}.5, repeat('{digit}', 3000)) "
            "ON DUPLICATE KEY UPDATE value = {other}"
        ),
    ),
    "touch": (
        "UPDATE {items} SET flag = 1 - flag WHERE id >= {key}",
        "UPDATE {pairs} SET value = {other} WHERE b >= {key}",
    ),
    "move": (
        "UPDATE IGNORE {items} SET id = {other} WHERE id = {key}",
        "UPDATE IGNORE {pairs} SET b = {other} WHERE b = {key}",
    ),
    "many": (
        (
            "INSERT INTO {items} (id, value, big) SELECT seq, 'many', repeat('{digit}', 3000) "
            "FROM seq_7_to_{last} ON DUPLICATE KEY UPDATE value = 'again'"
        ),
    ),
    "retype": ("ALTER TABLE {items} MODIFY flag bigint",),
    "rename": ("RENAME TABLE {pairs} TO {pairs}_old", "RENAME TABLE {pairs}_old TO {pairs}"),
    "replace": (
        "CREATE TABLE {pairs}_new LIKE {pairs}",
        "INSERT INTO {pairs}_new VALUES ('new', {key}, {other}, NULL)",
        "RENAME TABLE {pairs} TO {pairs}_old, {pairs}_new TO {pairs}",
        "DROP TABLE {pairs}_old",
    ),
    "minimal": ("SET SESSION binlog_row_image = MINIMAL",),
    "full": ("SET SESSION binlog_row_image = FULL",),
}
_IS_THERE: Final = (
    "(SELECT count(*) FROM information_schema.columns "
    "WHERE concat(table_schema, '.', table_name) = '{items}' AND column_name = 'extra{odd}')"
)
_MYSQL: Final = {
    "many": (
        "SET SESSION cte_max_recursion_depth = 1000000",
        (
            "INSERT INTO {items} (id, value, big) WITH RECURSIVE s (n) AS "
            "(SELECT 7 UNION ALL SELECT n + 1 FROM s WHERE n < {last}) "
            "SELECT n, 'many', repeat('{digit}', 3000) FROM s "
            "ON DUPLICATE KEY UPDATE value = 'again'"
        ),
    ),
    "add": (
        (
            f"SET @sql = if({_IS_THERE}, 'DO 0', "
            "'ALTER TABLE {items} ADD COLUMN extra{odd} int DEFAULT {other}')"
        ),
        "PREPARE altered FROM @sql",
        "EXECUTE altered",
    ),
    "drop": (
        f"SET @sql = if({_IS_THERE}, 'ALTER TABLE {{items}} DROP COLUMN extra{{odd}}', 'DO 0')",
        "PREPARE altered FROM @sql",
        "EXECUTE altered",
    ),
}
CAPTURED: Final = {
    "postgres": Captured(
        CaptureWorld,
        {
            "items": "id int PRIMARY KEY, value text, big text, flag boolean DEFAULT true",
            "pairs": "a text, b int, value numeric(10,2), big text, PRIMARY KEY (b, a)",
        },
        _EITHER | _POSTGRES,
        (
            "ALTER TABLE {items} ALTER big SET STORAGE EXTERNAL",
            "ALTER TABLE {pairs} ALTER big SET STORAGE EXTERNAL",
            # One of the two tells whole old rows.
            "ALTER TABLE {pairs} REPLICA IDENTITY FULL",
        ),
    ),
    "mariadb": Captured(
        BinlogWorld,
        {
            "items": "id int PRIMARY KEY, value text, big text, flag tinyint(1) DEFAULT 1",
            "pairs": "a varchar(20), b int, value numeric(10,2), big text, PRIMARY KEY (b, a)",
        },
        _EITHER | _MARIADB,
    ),
}
"""By the name of the fixture that starts each."""
MYSQL: Final = replace(CAPTURED["mariadb"], statements=_EITHER | _MARIADB | _MYSQL)
"""Where MySQL stands for MariaDB."""
