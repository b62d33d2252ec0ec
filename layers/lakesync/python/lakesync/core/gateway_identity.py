"""Which gateway it is: its epoch, which clients compare, and its secret, which signs for it. Pure.

Rules of epochs
    1. The first part is the gateway's **identity**: random, written with its first commit, and the
       same for ever, in backups and copies too. Neither the name nor the URL is part of it.
    2. A restore from a backup puts a stamp behind it, above that of any restore before.
    3. Another identity is another gateway: nothing of it is read or written (`AnotherGateway`).
       Another stamp is another state of the same gateway: its cursors are void (`CursorExpired`).
    4. An epoch is empty only before the first commit, and who names none is not checked.

Laws B12, B19: ``docs/spec/commit.md``.

A gateway's secret is derived from the stack's, and signs tokens for that gateway alone. It is not
stored, so any number of gateways may have one. Neither the stack's secret nor another gateway's can
be computed from it.
"""

from __future__ import annotations

import hmac
from base64 import b32encode
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lakesync.errors import AnotherGateway

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp

# --- the epoch ------------------------------------------------------------------------------------


EPOCH_LENGTH_MAX: Final = 64
"""The longest epoch that a client may name, in characters; ours have at most 33."""
_IDENTITY_BYTES: Final = 10
_RESTORED: Final = "."


def new_epoch(token: str) -> str:
    """Return the epoch of a new gateway, from a token that nobody else has."""
    return b32encode(sha256(token.encode()).digest()[:_IDENTITY_BYTES]).decode().lower()


def restored_at(epoch: str, began: Stamp) -> str:
    """Return the epoch that a restore begins at a stamp; as text, a later one is greater."""
    return f"{identity_of(epoch)}{_RESTORED}{began:016x}"


def identity_of(epoch: str) -> str:
    """Return the part of an epoch that never changes."""
    return epoch.partition(_RESTORED)[0]


def was_restored(epoch: str) -> bool:
    """Return whether the gateway was ever restored from a backup."""
    return _RESTORED in epoch


def check_identity(named: str | None, epoch: str) -> None:
    """Refuse what a client sends to another gateway than it knows.

    Args:
        named: the epoch that the client names; None or empty if it names none.
        epoch: the gateway's.

    Raises:
        AnotherGateway: it is another gateway's.
    """
    if named and identity_of(named) != identity_of(epoch):
        raise AnotherGateway(AnotherGateway.ANSWER, field="epoch")


# --- the secret -----------------------------------------------------------------------------------


def gateway_secret(stack_secret: str, gateway: str, generation: int = 0) -> str:
    """Return a gateway's secret as 64 hexadecimal digits.

    Args:
        stack_secret: the stack's; 32 bytes or more.
        gateway: the gateway's id.
        generation: increased to invalidate the secret before.
    """
    # Neither a generation nor a gateway id contains "|", so no two pairs give the same text.
    purpose = f"lakesync gateway secret|{generation}|{gateway}"
    return hmac.new(stack_secret.encode(), purpose.encode(), sha256).hexdigest()
