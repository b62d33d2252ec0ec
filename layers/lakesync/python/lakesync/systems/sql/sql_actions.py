"""Declared statements in a database, each done once.

Rules of this module
    1. A run is first noted in the table `lakesync_actions`, in the transaction that does it: a
       second attempt at the same run, concurrent or later, finds its result.
    2. Parameters are bound by the driver; a client passes values, never SQL.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.actions.declared_actions import DECLARED_MAX, DeclaredAction, unique
from lakesync.actions.engine import NOT_DONE, Done, Looked, Run, SupportedAction
from lakesync.connectors.port import Host, Name, Settings
from lakesync.errors import (
    ActionFailed,
    AdapterFailed,
    AdapterRefused,
    AdapterUnreachable,
    ConstraintViolated,
    LakeSyncError,
    OutcomeUnknown,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lakesync.adapters.sql.standard import Connection, Dialect

ROWS_MAX: Final = 100
"""Rows that a statement may return."""
SQL_CHARACTERS_MAX: Final = 10_000
"""One statement."""
WAIT_S_MAX: Final = 7
"""How long a statement may take or wait for a lock: less than an action may take."""
STATEMENT_S_MAX: Final = 8
"""How long to wait for a server's answer: a little longer than a statement may take."""
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS lakesync_actions (run_id varchar(64) NOT NULL PRIMARY KEY, "
    "done_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, answer text NOT NULL)"
)
_IS_THERE: Final = (
    "SELECT 1 FROM information_schema.tables WHERE table_name = 'lakesync_actions' "
    "AND table_schema = {}"
)
_ANSWER: Final = "SELECT answer FROM lakesync_actions WHERE run_id = %s"
_NOTE: Final = "INSERT INTO lakesync_actions (run_id, answer) VALUES (%s, '{}')"
_NOTE_ANSWER: Final = "UPDATE lakesync_actions SET answer = %s WHERE run_id = %s"
_PARAMETER: Final = re.compile(r"%\((\w+)\)s", re.ASCII)


class Statement(DeclaredAction):
    """One statement, with its parameters as ``%(name)s``."""

    sql: str = Field(max_length=SQL_CHARACTERS_MAX, description="Write %% for a percent sign.")
    returns: Literal["count", "rows"] = "count"

    @field_validator("sql")
    @classmethod
    def _bindable(cls, value: str) -> str:
        if "%" in _PARAMETER.sub("", value.replace("%%", "")):
            raise ValueError("parameters are %(name)s, and a percent sign is %%")
        return value

    def bound(self, params: Any) -> dict[str, Any]:
        """Return the values of the parameters; what a client leaves out is NULL."""
        return {name: _value(params.get(name)) for name in _PARAMETER.findall(self.sql)}


class SqlActionSettings(Settings):
    """What PostgreSQL, MySQL and MariaDB have in common."""

    host: Host
    database: Name
    user: Name = Field(description="A user who may do what the statements do, and no more.")
    password: SecretStr
    tls: Literal["verify", "encrypt", "off"] = "encrypt"
    statements: list[Statement] = Field(min_length=1, max_length=DECLARED_MAX)

    @model_validator(mode="after")
    def _once(self) -> Self:
        unique(self.statements)
        return self


class SqlStatements:
    """`lakesync.actions.ActionHandler` of declared statements.

    Args:
        schema: the database's expression for where its tables are.
        limits: what makes a session give up in time.
    """

    def __init__(
        self, settings: SqlActionSettings, dialect: Dialect, schema: str, limits: str
    ) -> None:
        self._statements = {statement.name: statement for statement in settings.statements}
        self._dialect = dialect
        self._is_there = _IS_THERE.format(schema)
        self._limits = limits
        self._connection: Connection | None = None

    def supported_actions(self) -> list[SupportedAction]:
        return [statement.supported() for statement in self._statements.values()]

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        statement = self._statements[run.action]

        def make_notes(cursor: Any) -> None:
            if not self._has_notes(cursor):
                cursor.execute(_TABLE)

        def work(cursor: Any) -> Done:
            cursor.execute(_ANSWER, (run.run_id,))
            if (noted := cursor.fetchone()) is not None:
                return Done(json.loads(noted[0]))
            cursor.execute(_NOTE, (run.run_id,))
            cursor.execute(statement.sql, statement.bound(run.params))
            answer = _given(cursor, statement.returns)
            cursor.execute(_NOTE_ANSWER, (json.dumps(answer), run.run_id))
            return Done(answer)

        made = self._transaction(make_notes)
        if isinstance(made, Err) and not isinstance(made.error, ActionFailed):
            return made  # another process may have created it; if not, the next statement fails
        result = self._transaction(work)
        if isinstance(result, Err) and isinstance(result.error, ActionFailed):
            noted = self.lookup(run)  # by an attempt that was thought dead
            if isinstance(noted, Ok) and isinstance(noted.value, Done):
                return Ok(noted.value)
        return result

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Look whether it was noted: then it was done."""

        def work(cursor: Any) -> Looked:
            if not self._has_notes(cursor):
                return NOT_DONE
            cursor.execute(_ANSWER, (run.run_id,))
            noted = cursor.fetchone()
            return NOT_DONE if noted is None else Done(json.loads(noted[0]))

        return self._transaction(work)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # nothing is left undone by it
                connection.close()

    def _has_notes(self, cursor: Any) -> bool:
        cursor.execute(self._is_there)
        return cursor.fetchone() is not None

    def _transaction(self, work: Callable[[Any], Any]) -> Result[Any, LakeSyncError]:
        is_commit = False
        try:
            if self._connection is None:
                self._connection = self._dialect.connect()
            with self._connection.cursor() as cursor:
                cursor.execute(self._limits)
                done = work(cursor)
            is_commit = True
            self._connection.commit()
        except Exception as exc:
            self.close()
            error = self._dialect.translate(exc)
            if error is None:
                raise
            if is_commit and not isinstance(error, ConstraintViolated):
                return Err(OutcomeUnknown("the connection was lost during the commit"))
            return Err(_meaning(error))
        return Ok(done)


def _meaning(error: LakeSyncError) -> LakeSyncError:
    """Return what a client is told: nothing was done; the database's own message stays here."""
    if isinstance(error, ConstraintViolated):
        return ActionFailed(
            "the database refuses these values: they violate its types or constraints"
        )
    if isinstance(error, AdapterRefused) or type(error) is AdapterFailed:
        return ActionFailed("the database does not run this statement: tell the administrator")
    if isinstance(error, AdapterUnreachable):
        return AdapterUnreachable("the database cannot be reached now")  # a client needs no address
    return error


def _given(cursor: Any, returns: str) -> dict[str, Any]:
    if returns == "count" or cursor.description is None:
        return {"count": max(cursor.rowcount, 0)}
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchmany(ROWS_MAX)]
    plain: dict[str, Any] = json.loads(json.dumps({"rows": rows}, default=str))
    return plain


def _value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
