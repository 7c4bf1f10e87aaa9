"""FlexCDC's own file, consumer.ini: sections of `key = value`, as PHP reads them.

`;` and `#` begin comments, values may be in quotes, true, on, yes and 1 are true. `${NAME}` in a
value is an environment variable, which the original does not have. Every key has
the meaning of FlexCDC's documentation; an unknown one is an error. Our own additions are the keys
`url` of [source] and [dest], in place of user, host, port and password, changelog_names and
row_values in [flexcdc], and a section [types].
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import quote, urlencode

from penstock.host.environment import quote_except_variables, replace_variables
from penstock.model import PenstockError
from penstock.model.sections import FlexCdcSettings

MAIN, SOURCE, DEST, TYPES = "flexcdc", "source", "dest", "types"
_SECTION = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?\Z")
_PAIR = re.compile(
    r"""(?P<key>[^=\s]+)\s*=\s*
        (?: "(?P<double>[^"]*)" | '(?P<single>[^']*)' | (?P<plain>[^;]*?) )
        \s*(?:;.*)?\Z""",
    re.VERBOSE,
)
_TYPE_PAIR = re.compile(r"(?P<key>[^=]+?)\s*=\s*\"?(?P<value>[^\";]*?)\"?\s*(?:;.*)?\Z")
_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0", "none", "")
_SERVER_KEYS = ("user", "host", "port", "password", "url")
_OPTIONS = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket", "connect_timeout")
_OWN = ("dest", "types", "sections")  # of FlexCdcSettings, but not keys of the section
SCHEME = "mysql"  # FlexCDC's servers belong to this family


class IniUnreadable(PenstockError):
    """The ini file cannot be read, or has no section [flexcdc]."""

    code = "FX50"


class IniKeyUnknown(PenstockError):
    """The ini file has an unknown key or section, or a line that is neither."""

    code = "FX51"


class IniValueInvalid(PenstockError):
    """A value of the ini file does not fit its key."""

    code = "FX52"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ini:
    """Content of a consumer.ini.

    Attributes:
        source: URL of the source.
        source_text: The same for a pipeline file: it names the variables of user and password.
        sections: all sections as texts, for plugins.
    """

    path: Path
    settings: FlexCdcSettings
    source: str = field(repr=False)
    source_text: str = field(repr=False)
    sections: Mapping[str, Mapping[str, str]] = field(repr=False)


def read_ini(path: Path, *, environment: Mapping[str, str] = os.environ) -> Ini:
    """Read and check the file. Raises IniUnreadable, IniKeyUnknown, IniValueInvalid.

    environment: values of the variables.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IniUnreadable(
            f"Could not read ini file: {path}",
            hint="Name FlexCDC's file with --ini; without it consumer.ini in this folder is read.",
        ) from error
    written = _sections(path, text)
    sections = {
        name: {key: _expand(path, name, key, value, environment) for key, value in pairs.items()}
        for name, pairs in written.items()
    }
    if MAIN not in sections:
        raise IniUnreadable(
            f"Could not find [flexcdc] section or .ini file not found: {path}",
            hint="Begin the file with a line [flexcdc] and its keys; docs/flexcdc.md lists them. "
            "Then give the same command again.",
        )
    settings = _settings(path, sections[MAIN])
    known = {MAIN, SOURCE, DEST, TYPES}
    if not settings.plugin:
        for name in sections:
            if name not in known:
                raise _unknown(path, f"section [{name}]", name, known)
    source, dest = (_url(path, name, sections.get(name, {})) for name in (SOURCE, DEST))
    return Ini(
        path=path,
        settings=replace(settings, dest=dest, types=sections.get(TYPES, {})),
        source=source,
        source_text=_source_text(written[SOURCE], sections[SOURCE], source),
        sections=sections,
    )


def _expand(path: Path, section: str, key: str, text: str, environment: Mapping[str, str]) -> str:
    """Return a value with its variables replaced. Raises IniValueInvalid."""

    def missing(name: str, hint: str) -> IniValueInvalid:
        return IniValueInvalid(
            f"{path.name}: {key} in [{section}] needs the environment variable {name}, which is "
            "not set",
            hint=hint,
            key=key,
        )

    return replace_variables(text, environment, missing)


def _source_text(written: Mapping[str, str], given: Mapping[str, str], url: str) -> str:
    """Return the source's URL for a pipeline file, which reads the same variables."""
    if given.get("url"):
        return written["url"]
    account = quote_except_variables(written.get("user", ""))
    if given.get("password"):
        account += f":{quote_except_variables(written['password'])}"
    return f"{SCHEME}://{account}@{url.rpartition('@')[2].replace('${', '$${')}"


def _sections(path: Path, text: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in ";#":
            continue
        section = _SECTION.match(line)
        if section is not None:
            name = section[1].strip()
            found.setdefault(name, {})
            continue
        pair = (_TYPE_PAIR if name == TYPES else _PAIR).match(line)
        if pair is None or not name:
            raise IniKeyUnknown(
                f"{path.name}, line {number}: neither a section nor key = value",
                hint='Write key = value below a line [section]; a value with ; goes in "quotes". '
                "Then give the same command again.",
                line=number,
            )
        groups = pair.groupdict()
        values = (groups.get(kind) for kind in ("double", "single", "plain", "value"))
        found[name][pair["key"]] = next((v for v in values if v is not None), "")
    return found


def _settings(path: Path, given: Mapping[str, str]) -> FlexCdcSettings:
    kinds = get_type_hints(FlexCdcSettings)
    known = [item.name for item in fields(FlexCdcSettings) if item.name not in _OWN]
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            raise _unknown(path, f"key {key} in [flexcdc]", key, known)
        values[key] = _value(path, key, text, kinds[key])
    return FlexCdcSettings(**values)


def _value(path: Path, key: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise _invalid(path, key, text, "true or false")
    if kind is float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 2**31:
            raise _invalid(path, key, text, "seconds, 0 or more")
        return number
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if text not in tuple(kind):
            raise _invalid(path, key, text, " or ".join(kind))
        return kind(text)
    if kind is str:
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _invalid(path: Path, key: str, text: str, expected: str) -> IniValueInvalid:
    return IniValueInvalid(
        f"{path.name}: {key} is {text!r}, expected {expected}",
        hint=f"Correct {key} in [flexcdc]; docs/flexcdc.md says what it does. Then give the "
        "same command again.",
        key=key,
    )


def _unknown(path: Path, what: str, name: str, known: Any) -> IniKeyUnknown:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(known))}."
    hint += " Correct it and give the same command again."
    return IniKeyUnknown(f"{path.name}: unknown {what}", hint=hint, key=name)


def _url(path: Path, name: str, given: Mapping[str, str]) -> str:
    known = (*_SERVER_KEYS, *_OPTIONS)
    for key in given:
        if key not in known:
            raise _unknown(path, f"key {key} in [{name}]", key, known)
    if given.get("url"):
        return given["url"]
    if not given.get("host") and not given.get("socket"):
        raise IniKeyUnknown(
            f"{path.name}: [{name}] names no host",
            hint=f"Write user, host, port and password below [{name}] and give the same command "
            "again.",
            key=f"{name}.host",
        )
    account = quote(given.get("user", ""), safe="")
    if given.get("password"):
        account += f":{quote(given['password'], safe='')}"
    port = f":{given['port']}" if given.get("port") else ""
    host = given.get("host") or "localhost"
    options = urlencode({key: given[key] for key in _OPTIONS if given.get(key)})
    return f"{SCHEME}://{account}@{host}{port}/" + (f"?{options}" if options else "")
