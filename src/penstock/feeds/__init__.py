"""Staging in a database: changefeeds in, consistent states out. Follows document 001."""
