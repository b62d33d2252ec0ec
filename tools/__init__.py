"""Command-line tools around the project; nothing of this is deployed."""
