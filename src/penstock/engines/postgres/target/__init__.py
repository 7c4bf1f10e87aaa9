"""PostgreSQL as a target: merge tables, schema, progress."""
