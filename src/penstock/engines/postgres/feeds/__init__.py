"""A PostgreSQL database as the staging database of changefeeds: document 001's tables."""
