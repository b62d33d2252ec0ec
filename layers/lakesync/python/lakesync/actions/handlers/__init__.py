"""The action handlers of this package."""
