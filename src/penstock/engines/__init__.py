"""Database engines: one folder each, with everything about it but its bytes."""
