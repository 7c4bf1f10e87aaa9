"""Consistent mode: the worker on a group, the begin of its log, its target's applied position."""
