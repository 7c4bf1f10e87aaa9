"""Error of reading one MySQL value; shared by the modules that read values."""


class Malformed(ValueError):
    """Not a form in which a server stores this type."""


class Unfit(ValueError):
    """A proper value that the neutral type cannot hold; the column must become text."""
