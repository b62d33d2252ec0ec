"""Flows: from any source to any destination, as they are declared."""

from typing import Final

DOORS: Final = ("flow_admin", "routes", "shaping")
"""What other folders may import."""
