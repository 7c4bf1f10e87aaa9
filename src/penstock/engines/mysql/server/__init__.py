"""A server of MySQL or MariaDB of our own, for tests."""
