"""Server of the change log for clients that follow a database: the server, its slots, its
catalogue.
"""
