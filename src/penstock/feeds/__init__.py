"""Changefeeds: received, staged in a database, applied in order, as Replicator does."""
