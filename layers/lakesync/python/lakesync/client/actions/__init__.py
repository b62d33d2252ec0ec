"""Actions that an app asks for: queued beside its edits, sent when it can be, results told."""
