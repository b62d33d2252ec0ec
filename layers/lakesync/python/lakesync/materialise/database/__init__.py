"""Iceberg tables as a database: read and written by flows and copies."""

from lakesync.materialise.database.adapter import IcebergDatabase as IcebergDatabase
