"""Regular expressions and LIKE of the server, matched by RE2 in time linear in the text.

Users of the server choose patterns and texts, so no engine that backtracks may see them. Patterns
that RE2 and PostgreSQL interpret differently are refused. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.postgres.pgwire_server import Refused

PATTERN_LETTERS_MAX = 10_000
BACKSLASH = "\\"
_CACHED = 4096
_CACHED_LETTERS_MAX = 1000
_CLASSES = {
    "alpha": r"\pL",
    "digit": "0-9",
    "alnum": r"\pL\pN",
    "upper": r"\p{Lu}",
    "lower": r"\p{Ll}",
    "space": r"\t-\r ",
}
_ESCAPES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": r"[\pL\pN_]",
    "W": r"[^\pL\pN_]",
    "s": r"[\t-\r ]",
    "S": r"[^\t-\r ]",
    "A": r"\A",
    "Z": r"\z",
    "y": r"\b",
    **{letter: "\\" + letter for letter in "nrtfv"},
}
_INSIDE = {"d": "0-9", "w": r"\pL\pN_", "s": r"\t-\r ", **{one: "\\" + one for one in "nrtfv"}}
_CLASS = re.compile(r"\[:([a-z]+):\]")


class _Translated(NamedTuple):
    """Pattern for RE2.

    Attributes:
        groups: number of captured parts, which are named g1, g2, ...
        is_plain: all engines find the same match, as there is only one.
        has_word_ends: it tests the ends of words, which RE2 knows for ASCII only.
    """

    text: str
    groups: int
    is_plain: bool
    has_word_ends: bool


def is_match(operator: str, text: str, pattern: str, escape: str = BACKSLASH) -> bool:
    """Return whether `text operator pattern`; operators: ~~ ~~* ~ ~*.

    Raises Refused: 0A000, 2201B, 22025.
    """
    if len(text) + len(pattern) <= _CACHED_LETTERS_MAX:
        return _cached_match(operator, text, pattern, escape)
    return _match(operator, text, pattern, escape)


def like_pattern(pattern: str) -> str:
    """Return a LIKE pattern as a regular expression of RE2. Raises Refused: 22025, 54000."""
    return f"(?s){_like(pattern, BACKSLASH)}"


def first_match(text: str, pattern: str) -> str | None:
    """Return the first match of a pattern, or of its first group; None if there is none."""
    found = _translate(pattern)
    _check_choice(found, pattern)
    _check_words(found, text, pattern)
    inside = found.text if found.groups else f"(?P<g1>{found.text})"
    made = _call(pc.extract_regex, text, f"(?s){inside}", pattern)
    return None if made is None else str(made["g1"])


def replace_matches(text: str, pattern: str, new: str, *, ignore_case: bool, every: bool) -> str:
    r"""Replace the first match or every one; `new` may have `\1` to `\9` and `\&`."""
    found = _translate(pattern)
    _check_choice(found, pattern)
    _check_words(found, text, pattern)
    flags = "(?si)" if ignore_case else "(?s)"

    def rewritten(part: re.Match[str]) -> str:
        if part[1] == "&":
            return r"\0"
        if part[1].isdecimal() and 0 < int(part[1]) <= found.groups:
            return part[0]
        return "" if part[1].isdecimal() and part[1] != "0" else "\\\\" + part[1].strip("\\")

    count = -1 if every else 1
    replacement = re.sub(r"\\(.|$)", rewritten, new, flags=re.DOTALL)
    return str(_call(_replace, text, f"{flags}{found.text}", pattern, replacement, count))


def _replace(text: Any, pattern: str, replacement: str, count: int) -> Any:
    return pc.replace_substring_regex(text, pattern, replacement, max_replacements=count)


def _call(call: Any, text: str, re2: str, pattern: str, *more: Any) -> Any:
    try:
        return call(pa.scalar(text), re2, *more).as_py()
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        if "repetition size" in reason or "too large" in reason:
            raise _make_unsupported(pattern) from None
        raise Refused("2201B", f"invalid regular expression: {reason}") from None


def _match(operator: str, text: str, pattern: str, escape: str) -> bool:
    flags = "(?si)" if operator.endswith("*") else "(?s)"
    if operator.startswith("~~"):
        re2 = _like(pattern, escape)
    else:
        found = _translate(pattern)
        _check_words(found, text, pattern)
        re2 = found.text
    return bool(_call(pc.match_substring_regex, text, flags + re2, pattern))


@lru_cache(_CACHED)
def _cached_match(operator: str, text: str, pattern: str, escape: str) -> bool:
    return _match(operator, text, pattern, escape)


@lru_cache(512)
def _like(pattern: str, escape: str) -> str:
    """Return a LIKE pattern for RE2. Raises Refused: 22025, 54000."""
    _check_length(pattern)
    if len(escape) > 1:
        raise Refused(
            "22019",
            "invalid escape string",
            hint="Escape string must be empty or one character.",
        )
    parts: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if escape and letter == escape:
            following = next(letters, None)
            if following is None:
                raise Refused("22025", "LIKE pattern must not end with escape character")
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return rf"\A{''.join(parts)}\z"


def _check_length(pattern: str) -> None:
    if len(pattern) > PATTERN_LETTERS_MAX:
        raise Refused("54000", f"a pattern has more than {PATTERN_LETTERS_MAX} letters")


def _check_choice(found: _Translated, pattern: str) -> None:
    """Refuse patterns for which PostgreSQL finds the longest match, and RE2 the first."""
    if not found.is_plain:
        raise _make_unsupported(pattern)


def _check_words(found: _Translated, text: str, pattern: str) -> None:
    if found.has_word_ends and not text.isascii():
        raise _make_unsupported(pattern)


def _make_unsupported(pattern: str) -> Refused:
    return Refused("0A000", f"not supported in a regular expression: {pattern[:200]}")


@lru_cache(512)
def _translate(pattern: str) -> _Translated:
    """Return the pattern for RE2. Raises Refused: 0A000, 54000."""
    _check_length(pattern)
    if pattern.startswith("***"):
        raise _make_unsupported(pattern)
    parts: list[str] = []
    groups, at, is_plain, has_word_ends = 0, 0, True, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            escaped = pattern[at + 1 : at + 2]
            has_word_ends = has_word_ends or escaped == "y"
            parts.append(_escape(escaped, _ESCAPES, pattern))
            at += 2
        elif letter == "[":
            inside, at = _bracket(pattern, at)
            parts.append(inside)
        elif letter == "(":
            if pattern.startswith("(?:", at):
                parts.append("(?:")
                at += 3
            elif pattern.startswith("(?", at):
                raise _make_unsupported(pattern)
            else:
                groups += 1
                parts.append(f"(?P<g{groups}>")
                at += 1
        else:
            is_lazy = letter == "?" and at > 0 and pattern[at - 1] in "*+?}"
            is_optional_group = letter in "*?{" and at > 0 and pattern[at - 1] == ")"
            is_plain = is_plain and letter != "|" and not is_lazy and not is_optional_group
            parts.append({"$": r"\z", "^": r"\A"}.get(letter, letter))
            at += 1
    return _Translated("".join(parts), groups, is_plain, has_word_ends)


def _escape(letter: str, known: dict[str, str], pattern: str) -> str:
    if letter and not letter.isalnum():
        return re.escape(letter)
    if letter in known:
        return known[letter]
    if not letter:
        raise Refused("2201B", "invalid regular expression: invalid escape \\ sequence")
    raise _make_unsupported(pattern)


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Return the RE2 form of the bracket expression that begins at a place, and where it ends."""
    parts = ["["]
    at += 1
    if pattern.startswith("^", at):
        parts.append("^")
        at += 1
    if pattern.startswith("]", at):
        parts.append(r"\]")
        at += 1
    while at < len(pattern):
        letter = pattern[at]
        if letter == "]":
            return "".join(parts) + "]", at + 1
        if letter == "\\":
            parts.append(_escape(pattern[at + 1 : at + 2], _INSIDE, pattern))
            at += 2
        elif letter == "[" and pattern[at + 1 : at + 2] in (":", ".", "="):
            match = _CLASS.match(pattern, at)
            if match is None or match[1] not in _CLASSES:
                raise _make_unsupported(pattern)
            parts.append(_CLASSES[match[1]])
            at = match.end()
        else:
            parts.append("\\" + letter if letter == "[" else letter)
            at += 1
    raise Refused("2201B", "invalid regular expression: brackets [] not balanced")
