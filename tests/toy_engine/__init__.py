"""An engine from outside the package: a file of SQLite that is a source and a target.

It is the example of docs/adding-an-engine.md, small rather than fast, with all that a real engine
needs: `store.py` stands for the database, `descriptor.py` lists the parts, and each other module
has the parts of one task. Values are texts as PostgreSQL prints them, under its types. What the
engine leaves out (`penstock reset`, repairing, tables that are added later) is refused by name or
is missing.
"""

from toy_engine.descriptor import DESCRIPTOR

__all__ = ["DESCRIPTOR"]
