"""MySQL and MariaDB: source, destination, capture of changes, declared statements."""
