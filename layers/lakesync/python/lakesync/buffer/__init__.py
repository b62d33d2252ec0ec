"""The durable buffer: heads, commit log, row states, configuration.

`dynamo` implements it in one DynamoDB table, `memory_buffer` in this process; both pass
``tests/contracts``.
"""

from typing import Final

DOORS: Final = (
    "admin_stores",
    "admission",
    "caller",
    "connections",
    "dynamo",
    "dynamo_items",
    "items",
    "memory_buffer",
    "memory_items",
    "table_calls",
)
"""What other folders may import."""
