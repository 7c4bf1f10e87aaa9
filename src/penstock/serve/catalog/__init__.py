"""Catalogue: answers to clients' SQL about tables, publications, slots and settings.

A query is read with sqlglot (`grammar.py`), names and types are resolved against the real
definitions of the system catalogues (`facts.tsv.gz`, `binder.py`, `expressions.py`), and the result
is run by SQLite over tables filled from the log's relations (`store.py`, `rows.py`). LATERAL and
functions that return sets become `json_each`, which SQLite evaluates for each row; so no other
engine is needed. A query that cannot be resolved is refused with the server's own SQLSTATE.
"""
