"""Iceberg tables as a database: what flows and copies read, and what they write."""

from lakesync.materialise.database.adapter import IcebergDatabase as IcebergDatabase
