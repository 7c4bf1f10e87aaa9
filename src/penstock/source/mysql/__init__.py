"""Following the binlog of a MySQL or MariaDB server, and reading its tables."""
