"""Text of a pipeline file: TOML, `${ENV}`, the line of each key, and the errors of such places."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.host.environment import replace_variables
from penstock.host.errors import UrlInvalid
from penstock.model import PenstockError
from penstock.ports.config import OPTIONS_PART
from penstock.ports.registry import part

_SECTION_LINE = re.compile(r"\s*\[\s*([A-Za-z0-9_.\-\"' ]+?)\s*\]")
_KEY_LINE = re.compile(r"\s*[\"']?([A-Za-z0-9_\-]+)[\"']?\s*(?:=|\.)")


class ConfigUnreadable(PenstockError):
    """The pipeline file does not exist or cannot be read."""

    code = "CF01"


class ConfigSyntax(PenstockError):
    """The pipeline file is not TOML."""

    code = "CF02"


class ConfigVariableMissing(PenstockError):
    """A value names an environment variable that is not set."""

    code = "CF03"


@dataclass(frozen=True, slots=True)
class Substituted:
    """Value that came, whole or in part, from environment variables."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """Parsed pipeline file.

    Attributes:
        path: The file.
        values: The TOML document with variables replaced; a text in which one was replaced is a
            `Substituted`, so that `"${N}"` may be used for a number.
        lines: `(section, key)` to line number, from 1; the section itself under key "".
    """

    path: Path
    values: dict[str, Any]
    lines: Mapping[tuple[str, str], int]

    def place(self, section: str, key: str = "") -> str:
        """Return the place for a message: `shop.toml line 12, [changeLoader]`."""
        line = self.lines.get((section, key)) or self.lines.get((section, ""))
        where = f"{self.path.name} line {line}" if line else self.path.name
        return f"{where}, [{section}]" if section else where


def read_config_text(path: Path, environment: Mapping[str, str]) -> ConfigText:
    """Read and parse a pipeline file.

    Raises ConfigUnreadable, ConfigSyntax (with TOML's line and column), ConfigVariableMissing.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigUnreadable(
            f"cannot read the pipeline file {path}: {reason}",
            hint="Name a pipeline file in TOML; docs/configuration.md shows a whole one.",
        ) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigSyntax(
            f"{path.name} is not valid TOML: {error}",
            hint="Fix the line that it names; texts need quotes, true and false do not.",
        ) from error
    lines = _lines(text)
    return ConfigText(
        path=path,
        values=_with_variables(
            values, (), ConfigText(path=path, values={}, lines=lines), environment
        ),
        lines=lines,
    )


def _lines(text: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _SECTION_LINE.match(line):
            section = header[1].replace('"', "").replace("'", "").replace(" ", "")
            found.setdefault((section, ""), number)
        elif key := _KEY_LINE.match(line):
            found.setdefault((section, key[1]), number)
    return found


def _with_variables(
    value: Any, keys: tuple[str, ...], text: ConfigText, environment: Mapping[str, str]
) -> Any:
    if isinstance(value, dict):
        return {
            key: _with_variables(item, (*keys, key), text, environment)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_variables(item, keys, text, environment) for item in value]
    if isinstance(value, str) and "${" in value:
        return _replace_variables(value, keys, text, environment)
    return value


def _replace_variables(
    value: str, keys: tuple[str, ...], text: ConfigText, environment: Mapping[str, str]
) -> str | Substituted:
    """Replace `${NAME}`, as `replace_variables` does."""
    section, key = (keys[0], keys[1]) if len(keys) > 1 else ("", keys[0] if keys else "")

    def missing(name: str, hint: str) -> ConfigVariableMissing:
        return ConfigVariableMissing(
            f"{text.place(section, key)}: {'.'.join(keys)} needs the environment variable "
            f"{name}, which is not set",
            hint=hint,
            key=".".join(keys),
            variable=name,
        )

    return Substituted(replace_variables(value, environment, missing))


def plain(value: Any) -> Any:
    """Return the value with every Substituted replaced by its text."""
    if isinstance(value, Substituted):
        return value.text
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


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
