"""A PostgreSQL server of our own, for the demo and for tests."""
