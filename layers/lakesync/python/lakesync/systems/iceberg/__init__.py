"""Iceberg tables as a database: source and destination."""
