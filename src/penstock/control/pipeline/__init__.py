"""A pipeline and its directory: configuration, locks, requests, stopping, diagnostics."""
