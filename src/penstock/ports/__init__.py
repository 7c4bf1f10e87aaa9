"""Ports: the Protocols that drivers ask of an engine, their nouns, and the registry of engines."""
