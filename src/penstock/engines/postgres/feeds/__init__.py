"""A PostgreSQL database as the staging database of changefeeds: Replicator's tables."""
