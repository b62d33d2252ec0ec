"""The secret of one gateway, made from the stack's: whoever has it signs for that gateway alone.

Nothing is stored for it, so any number of gateways may have one. Nobody can go back from it to the
stack's secret, or to another gateway's.
"""

from __future__ import annotations

import hmac
from hashlib import sha256


def gateway_secret(stack_secret: str, gateway: str, generation: int = 0) -> str:
    """Give a gateway's secret as 64 hexadecimal digits.

    Args:
        stack_secret: the stack's; 32 bytes or more.
        gateway: whose.
        generation: counted up to take the one of before out of force.
    """
    # The generation holds no "|", nor does a gateway id: no two of them make one text.
    purpose = f"lakesync gateway secret|{generation}|{gateway}"
    return hmac.new(stack_secret.encode(), purpose.encode(), sha256).hexdigest()
