"""Consistent mode: who works on a group, where its log begins, and what its target has applied."""
