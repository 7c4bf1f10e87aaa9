"""Certification of an Oracle database by its user: `make certify-oracle DSN=oracle://...`.

Runs scripted cases on a real database, compares the rows that LogMiner then shows with what
penstock assumes, runs suites of the tests and a soak, and writes a report. Not here: a model that
imitates Oracle (`sim_oracle`).
"""
