"""Comparing tables of MySQL and MariaDB."""
