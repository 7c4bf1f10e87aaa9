"""Read and print arrays of one dimension in PostgreSQL's text form. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.codec.postgres.pgwire_server import Refused

_ELEMENT = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)"\s*|(?P<plain>[^",{}]+)', re.DOTALL)


def read_array(text: str) -> list[str | None]:
    """Return the elements of a printed array of one dimension. Raises Refused: 22P02."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise _make_malformed(text)
    if body[1:-1].strip() == "":
        return []
    found: list[str | None] = []
    at = 1
    while at < len(body):
        while body[at].isspace():  # the text ends with a brace
            at += 1
        match = _ELEMENT.match(body, at)
        if match is None or body[match.end() : match.end() + 1] not in (",", "}"):
            raise _make_malformed(text)
        if match["quoted"] is not None:
            found.append(re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL))
        else:
            plain = match["plain"].rstrip()
            found.append(None if plain.lower() == "null" else plain)
        at = match.end() + 1
    if body[-2] == ",":
        raise _make_malformed(text)
    return found


def _make_malformed(text: str) -> Refused:
    return Refused("22P02", f'malformed array literal: "{text}"')


_BARE_ELEMENT = re.compile(r"[^\s{}\",\\]+")


def print_array(cells: Iterable[str | None]) -> str:
    """Return the text form of an array of texts; None is NULL."""
    return "{" + ",".join(_array_element(cell) for cell in cells) + "}"


def _array_element(text: str | None) -> str:
    if text is None:
        return "NULL"
    if _BARE_ELEMENT.fullmatch(text) and text.lower() != "null":
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
