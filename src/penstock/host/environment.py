"""Environment variables in settings: `${NAME}` in a text, of a pipeline file or of consumer.ini."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_USER_INFO = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://([^/?#]*)@")


def replace_variables(
    text: str, environment: Mapping[str, str], missing: Callable[[str, str], Exception]
) -> str:
    """Return the text with `${NAME}` replaced; `$${` means a plain `${`.

    Inside the user:password part of a URL the variable's text is percent-encoded, so that a
    password may hold `@` or `/` unchanged.

    Args:
        text: The value of a setting.
        environment: Values by name.
        missing: Returns the error for a name that is not set, from the name and a hint.
    """
    user_info = _USER_INFO.match(text)
    encoded = range(*user_info.span(1)) if user_info else range(0)

    def replace_one(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match[1]
        if not _NAME.match(name) or name not in environment:
            raise missing(
                name or "(empty name)",
                f"Set it and run again: export {name}=...; write $${{ for a plain ${{.",
            )
        return quote(environment[name], safe="") if match.start() in encoded else environment[name]

    return VARIABLE.sub(replace_one, text)


def quote_except_variables(text: str) -> str:
    """Return the text percent-encoded, with `${NAME}` as it is and `$${` encoded as `${`."""
    parts, end = [], 0
    for match in VARIABLE.finditer(text):
        parts.append(quote(text[end : match.start()], safe=""))
        parts.append(quote("${", safe="") if match[0] == "$${" else match[0])
        end = match.end()
    return "".join([*parts, quote(text[end:], safe="")])
