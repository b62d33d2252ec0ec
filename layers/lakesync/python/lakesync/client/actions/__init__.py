"""Actions that an app requests: queued beside its edits, sent when possible, results reported."""
