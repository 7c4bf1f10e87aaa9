"""Errors of reading one value of Oracle, shared by the modules that read values."""


class Malformed(ValueError):
    """Text or bytes are not a form in which LogMiner prints this type."""


class FormatUnknown(ValueError):
    """A date or time is not in the format that penstock's sessions set."""


class NotUnicode(ValueError):
    """A text has half of a pair of UTF-16, which is not a character."""


class Unfit(ValueError):
    """The neutral type cannot hold a valid value; the column must become text."""
