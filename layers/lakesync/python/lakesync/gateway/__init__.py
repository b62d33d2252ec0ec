"""What a client may ask of a gateway: push, pull, and administration.

Read `push` first, then `commit`, the loop that makes a commit happen exactly once, then `pull`.
Everything here works on ports; DynamoDB is one of them.
"""

from typing import Final

DOORS: Final = (
    "access",
    "admin",
    "admin_changes",
    "attachments",
    "bootstrap",
    "broadcast",
    "connected",
    "destination_admin",
    "filtered_reads",
    "frame_sending",
    "pull",
    "push",
)
"""What other folders may import."""
