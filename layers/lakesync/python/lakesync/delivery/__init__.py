"""Delivery: claims of declared destinations are applied to their databases, and new ones filled."""

from typing import Final

DOORS: Final = ("deliverer", "source_pull", "table_context", "table_delivery")
"""What other folders may import."""
