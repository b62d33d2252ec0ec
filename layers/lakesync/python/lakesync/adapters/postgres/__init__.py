"""PostgreSQL as source and destination."""

from lakesync.adapters.postgres.dialect import Postgres, postgres_adapter

__all__ = ["Postgres", "postgres_adapter"]
