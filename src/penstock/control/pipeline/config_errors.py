"""Errors of a pipeline file: one class for each condition, and their places."""

from __future__ import annotations

from penstock.control.pipeline.config_text import ConfigText
from penstock.host.errors import UrlInvalid
from penstock.model import PenstockError
from penstock.ports.config import OPTIONS_PART
from penstock.ports.registry import part


class ConfigKeyUnknown(PenstockError):
    """A key or section that penstock does not know."""

    code = "CF04"


class ConfigValueInvalid(PenstockError):
    """A value of the wrong type, or outside the permitted range."""

    code = "CF05"


class ConfigKeyMissing(PenstockError):
    """A key without default is missing."""

    code = "CF06"


class ConfigUrlInvalid(PenstockError):
    """A database URL that cannot be read, or of an engine that penstock does not have."""

    code = "CF07"


class ConfigPatternInvalid(PenstockError):
    """An entry of tables that is not a table pattern."""

    code = "CF08"


class ConfigOtherEngine(PenstockError):
    """A parameter that belongs to another engine than the source's."""

    code = "CF09"


class ConfigStartRefused(PenstockError):
    """A starting position in mode data+change, where the handover finds it automatically."""

    code = "CF10"


class TargetMissing(PenstockError):
    """A command, or a setting of the file, is about a target, and the pipeline has none."""

    code = "CF11"


class SourceMissing(PenstockError):
    """A command is about a source, and the file is for changefeeds."""

    code = "CF12"


def invalid(text: ConfigText, section: str, key: str, reason: str) -> ConfigValueInvalid:
    """Return the error for a value. reason: the rest of a sentence that begins with the key."""
    return ConfigValueInvalid(
        f"{text.place(section, key)}: {key} {reason}",
        hint=f"See {key} in docs/configuration.md.",
        key=f"{section}.{key}",
    )


def check_url(text: ConfigText, section: str, url: str, *, key: str = "url") -> None:
    """Refuse a text that is not the URL of a database. Raises ConfigUrlInvalid."""
    try:
        part(url, OPTIONS_PART).check_url(url)
    except UrlInvalid as error:
        place = text.place(section, key)
        raise ConfigUrlInvalid(f"{place}: {error.message}", hint=error.hint) from error
