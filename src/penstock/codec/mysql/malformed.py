"""How reading one MySQL value fails; shared by the modules that read values.

Not here: what becomes of it, an error with its place or a wider column (`binlog_images`).
"""


class Malformed(ValueError):
    """Not a form in which a server stores this type."""


class Unfit(ValueError):
    """A proper value that the neutral type cannot hold; the column must become text."""
