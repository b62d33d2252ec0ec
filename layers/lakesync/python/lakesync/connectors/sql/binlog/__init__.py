"""MySQL and MariaDB as sources by change capture: their binary log of rows."""
