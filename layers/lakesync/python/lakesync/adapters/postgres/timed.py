"""A connection to PostgreSQL that does not wait for ever for a server that says nothing.

The server's own time limits bind a server that works, and not one that no longer answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")


class Timed(psycopg.Connection[Any]):
    """A connection that ends when one exchange with its server takes too long.

    Attributes:
        answer_s: how long one may take, in seconds.
    """

    answer_s: float | None = None

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:
        """Wait for an exchange with the server to end.

        Raises:
            psycopg.errors.ConnectionTimeout: it took too long; the connection is closed.
        """
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as exc:  # noqa: SLF001 - it has no public name
            self.pgconn.finish()  # what the server would still answer is for nobody
            raise psycopg.errors.ConnectionTimeout("the server does not answer in time") from exc
