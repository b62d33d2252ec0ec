"""The client's SQLite file: tables, rows, clock, and the edits that are made in it."""
