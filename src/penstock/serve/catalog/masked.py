"""Statements for logs, without possible secrets."""

from __future__ import annotations

import re

from penstock.codec.postgres.pgwire_server import Refused

LENGTH_MAX = 2_000
_HIDDEN = "'***'"
_TOKEN = re.compile(
    r"""
      (?P<hidden>
        [eE]'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)
      | '(?:[^']|'')*(?:'|\Z)
      | \$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][\w]*)?)\$.*?(?:\$(?P=tag)\$|\Z)
      | --[^\n]*
      | /\*.*?(?:\*/|\Z)
      )
    | (?P<name>"(?:[^"]|"")*(?:"|\Z))
    | (?P<word>\b(?:password|passwd|secret|token)\b[\s=:]*)(?!NULL\b|e?['"$])[^\s'";,()]+
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


_QUOTED = re.compile(r'"(?:[^"]|"")*(?:"|\Z)', re.DOTALL)


def mask_reason(refused: Refused) -> str:
    """Return the message of a refusal without the value or word that it quotes."""
    shows_text = refused.sqlstate.startswith("22") or refused.sqlstate == "42601"
    return _QUOTED.sub('"***"', refused.message) if shows_text else refused.message


def mask_sql(sql: str) -> str:
    """Return a statement with `'***'` for each constant in quotes, password and comment.

    Only the beginning of a long one is returned. A quote that is not closed hides the rest.
    """
    cut = sql[:LENGTH_MAX]

    def mask(found: re.Match[str]) -> str:
        if found["hidden"] is not None:
            return _HIDDEN
        return found[0] if found["name"] is not None else found["word"] + _HIDDEN

    masked = _TOKEN.sub(mask, cut)
    return masked if len(sql) == len(cut) else f"{masked} ..."
