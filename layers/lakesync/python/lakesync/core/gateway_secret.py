"""The secret of one gateway, derived from the stack's: it signs tokens for that gateway alone.

The secret is not stored, so any number of gateways may have one. Neither the stack's secret nor
another gateway's can be computed from it.
"""

from __future__ import annotations

import hmac
from hashlib import sha256


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
