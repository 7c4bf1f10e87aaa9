"""Ignite nodes as the source of a change log."""
