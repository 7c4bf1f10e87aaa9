"""Errors of reading one MySQL value, shared by the modules that read values."""


class Malformed(ValueError):
    """Bytes are not a form in which a server stores this type."""


class Unfit(ValueError):
    """The neutral type cannot hold a valid value; the column must become text."""
