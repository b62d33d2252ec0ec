"""`lakesync replay`: put dead letters back on their queues."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import typer

from lakesync.cli.audited import audited
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.ports.audit import STACK

QUEUES: Final = {
    "flush": ("FlushQueueUrl", "FlushDlqUrl"),
    "announce": ("AnnounceQueueUrl", "AnnounceDlqUrl"),
    "deliver": ("DeliverQueueUrl", "DeliverDlqUrl"),
}
"""Each queue's output, and its dead-letter queue's."""
CLAIMS: Final = "claims"
_RECEIVED_MAX: Final = 10
_HIDDEN_S: Final = 60
"""How long a message is ours while it is moved."""


@command
def replay(
    session: Session,
    *,
    queue: Annotated[str, typer.Argument(help="flush, announce, deliver or claims.")],
    limit: Annotated[int | None, typer.Option(help="Move at most this many.", min=1)] = None,
    look: Annotated[bool, typer.Option("--look", help="Print them; move nothing.")] = False,
) -> None:
    """Retry failed work: move dead letters back to their queue, or put back claims set aside.

    flush, announce and deliver are queues, whose dead letters are moved back. claims are batches of
    this gateway that the Glue job could not apply. Each message is written before it is deleted, so
    it may be delivered twice but is never lost; handlers are idempotent. Safe to repeat. Needs AWS
    credentials.

    Example:
      lakesync replay announce --look
      lakesync replay announce
    """
    if queue == CLAIMS:
        _replay_claims(session, limit, look=look)
        return
    if queue not in QUEUES:
        raise UsageFault(f"there is no queue {queue[:20]!r}: use {', '.join(QUEUES)} or {CLAIMS}")
    source, dead = (session.aws.output(name) for name in QUEUES[queue])
    client = session.aws.client("sqs")
    if look:
        bodies = _look(client, dead, limit or _RECEIVED_MAX)
        for body in bodies:
            session.out.json({"queue": queue, "body": body})
        session.out.note(f"{plural(len(bodies), 'message')} shown, none moved")
        return
    waiting = partial(_waiting, client, dead)
    with (
        audited(session, "replayQueue", queue, waiting, gateway=STACK),
        session.out.progress(f"moving messages of {queue} …"),
    ):
        moved = move(client, dead, source, limit)
    session.out.answer(
        {"queue": queue, "moved": moved}, f"{queue}: {plural(moved, 'message')} moved back"
    )


def _waiting(client: Any, dead: str) -> dict[str, str]:
    """Return about how many messages were given up, as SQS counts them."""
    wanted = ["ApproximateNumberOfMessages"]
    counted = client.get_queue_attributes(QueueUrl=dead, AttributeNames=wanted)["Attributes"]
    return {"waiting": counted[wanted[0]]}


def _replay_claims(session: Session, limit: int | None, *, look: bool) -> None:
    from itertools import islice

    from lakesync.cli.set_aside import claims_shown, put_back, set_aside

    aws, gateway = session.aws, session.connection.gateway
    claims = list(islice(set_aside(aws, gateway), limit))
    must_exist_in_stack(session, claims)
    if look:
        for claim in claims:
            session.out.json(claim)
        session.out.note(f"{plural(len(claims), 'claim')} shown, none moved")
        return
    waiting = partial(claims_shown, aws, gateway)
    with audited(session, "replayClaims", plural(len(claims), "claim"), waiting):
        moved = put_back(aws, [claim["claim"] for claim in claims])
    session.out.answer({"queue": CLAIMS, "moved": moved}, f"{plural(moved, 'claim')} put back")


def move(client: Any, dead: str, source: str, limit: int | None = None) -> int:
    """Move messages from one queue to another until there is none, or the limit is reached.

    Not by ``StartMessageMoveTask``: it moves everything, one task at a time, and says nothing of
    a message that it could not move.
    """
    from lakesync.adapters.lake.sqs import message_of

    moved = 0
    while limit is None or moved < limit:
        wanted = _RECEIVED_MAX if limit is None else min(_RECEIVED_MAX, limit - moved)
        messages = _receive(client, dead, wanted, _HIDDEN_S)
        if not messages:
            break
        for message in messages:
            client.send_message(
                QueueUrl=source,
                **message_of(message["Body"]),
                MessageAttributes=_attributes(message),
            )
            client.delete_message(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"])
            moved += 1
    return moved


def _look(client: Any, dead: str, limit: int) -> list[str]:
    messages = _receive(client, dead, min(limit, _RECEIVED_MAX), _HIDDEN_S)
    for message in messages:
        client.change_message_visibility(
            QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    return [message["Body"] for message in messages]


def _receive(client: Any, url: str, count: int, hidden_s: int) -> list[dict[str, Any]]:
    answer = client.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=count,
        VisibilityTimeout=hidden_s,
        WaitTimeSeconds=1,
        MessageAttributeNames=["All"],
    )
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def _attributes(message: dict[str, Any]) -> dict[str, Any]:
    kept = ("DataType", "StringValue", "BinaryValue")
    return {
        name: {key: value[key] for key in kept if key in value}
        for name, value in message.get("MessageAttributes", {}).items()
    }
