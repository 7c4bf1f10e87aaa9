"""Changefeeds: received, staged in a database, applied in order. Follows document 001."""
