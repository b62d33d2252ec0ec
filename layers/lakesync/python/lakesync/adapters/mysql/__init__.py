"""MySQL 8 and MariaDB as source and destination."""

from lakesync.adapters.mysql.dialect import MySql, mysql_adapter

__all__ = ["MySql", "mysql_adapter"]
