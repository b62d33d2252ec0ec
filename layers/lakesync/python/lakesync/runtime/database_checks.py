"""A declared database is asked by the function that will use it, before it is declared.

The administration has neither all drivers nor the databases' secrets, and is in none of their
subnets: it passes the question on, as it does for a flow's plan.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.outside import NO_ANSWER
from lakesync.core.destinations import ICEBERG
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.runtime import observe
from lakesync.runtime.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.flows.routes import OpenDatabase
    from lakesync.gateway.destinations import AsksDatabase
    from lakesync.runtime.observe import Handler

ASK_S: Final = 20
"""How long the administration waits for a database's answer: longer than connecting may take."""


def asked_by(
    invoke: Callable[[str], tuple[bool, bytes]], invoke_lakes: Callable[[str], tuple[bool, bytes]]
) -> AsksDatabase:
    """Return a function that has another function ask a database.

    Args:
        invoke: passes it a request; tells whether it answered, and what.
        invoke_lakes: the same for the function that has Iceberg.
    """

    def asks(gateway: str, kind: str, secret: str) -> None:
        request = {"gateway": gateway, "ask": {"kind": kind, "secret": secret}}
        answer = answer_of(invoke_lakes if kind == ICEBERG else invoke, request)
        if not answer.get("answers"):
            raise ValidationFailed(
                f"the database of the secret {secret} cannot be used: "
                f"{answer.get('reason', NO_ANSWER)}",
                field="secret",
            )

    return asks


def with_questions(handler: Handler, opened: OpenDatabase) -> Handler:
    """Return the handler that also asks a database whether it answers; nothing is made there.

    Args:
        handler: answers everything else.
        opened: opens databases.
    """

    def handle(event: dict[str, Any], context: Any) -> object:
        if "ask" not in event:
            return handler(event, context)
        gateway, place = event["gateway"], event["ask"]
        try:
            with closing(opened(gateway, place["secret"], place["kind"], gateway)) as database:
                database.answers().unwrap()
        except LakeSyncError as error:
            observe.failure(error, gateway=str(gateway))
            return {"reason": error.message}
        finally:
            observe.publish()
        return {"answers": True}

    return handle
