"""PostgreSQL as a source by change capture: its own log of changes, by a replication slot."""
