"""What the drivers ask of an engine: Protocols, the nouns they exchange, and the registry of
engines.
"""
