"""Certification of a SQL Server by its user: `make certify-sqlserver DSN=sqlserver://...`.

Runs scripted cases on a real server, compares what its change tables and catalogue then show with
what penstock assumes, runs suites of the tests and a soak, and writes a report. Not here: a server
that imitates SQL Server (`sim_sqlserver`).
"""
