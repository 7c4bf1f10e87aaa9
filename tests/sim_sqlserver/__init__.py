"""Simulated SQL Server: a TDS 7.4 server in a process of its own, over a PostgreSQL server."""
