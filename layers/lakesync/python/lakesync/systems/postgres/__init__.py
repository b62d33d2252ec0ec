"""PostgreSQL: source, destination, capture of changes, declared statements."""
