"""Scenarios: each gives some figures of the table."""
