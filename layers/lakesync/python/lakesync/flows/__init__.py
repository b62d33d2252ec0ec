"""Flows: from any source to any destination, as they are declared."""
