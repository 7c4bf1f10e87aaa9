"""Comparison of tables of MySQL and MariaDB."""
