"""The client's SQLite file: its tables, rows, clock, and the edits made in it."""
