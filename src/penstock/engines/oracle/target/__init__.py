"""Oracle as a target: of changes, of the bulk load and of repairs."""
