"""Comparing tables of PostgreSQL."""
