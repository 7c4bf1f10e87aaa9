"""CockroachDB: a staging database with its published tables. It is neither source nor target.

A URL of it in a pipeline file is refused, since it has no part `options`.
"""

from penstock.ports.registry import Descriptor

DESCRIPTOR = Descriptor(
    name="cockroach",
    shown="CockroachDB",
    extra="postgres",
    libraries=("psycopg",),
    schemes={"cockroachdb": "cockroachdb"},
    begins=("cannot be a source", ""),
    parts={"staging": "penstock.engines.cockroach.feeds:staging"},
)
