"""PostgreSQL, MySQL and MariaDB as sources."""
