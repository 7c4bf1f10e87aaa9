"""An engine from outside the package: a file of SQLite that is a source and a target.

The example of docs/adding-an-engine.md. Small rather than fast; it has what a real one needs:
`store.py` is the database that it stands for, `descriptor.py` says what there is, and each other
module has the parts of one task. Values are texts as PostgreSQL prints them, under its types. What
it leaves out (`penstock reset`, repairing, tables that come later) is refused by name or not there.
"""

from toy_engine.descriptor import DESCRIPTOR

__all__ = ["DESCRIPTOR"]
