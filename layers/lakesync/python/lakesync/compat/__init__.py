"""Code for existing clients only: they keep no stamps, and receipts move their cursor."""

from typing import Final

DOORS: Final = ("follower_deltas", "follower_progress", "follower_pulls")
"""What other folders may import."""
