"""Applying mutations row by row: immediate and best-effort modes, conflicts, the user's module."""
