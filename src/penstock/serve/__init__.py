"""The change log served to clients that follow a database: the server, its slots, its catalogue."""
