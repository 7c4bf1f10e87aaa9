"""Receiving changefeeds: over HTTP, and as files in a folder or bucket."""
