"""Find clauses of an ALTER that may delete or change rows if errors are ignored.

ALTER IGNORE ignores them, and so do the tools that copy a table's rows with INSERT IGNORE: rows
that a key or a check refuses are left out, values that a type does not hold are cut, and no row
event shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engines.mysql.source.ddl_words import Word, clauses

# First words of clauses that affect no row, or only new columns.
_HARMLESS = (
    *("ADD", "ALGORITHM", "ALTER", "AUTO_INCREMENT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT"),
    *("DEFAULT", "DISABLE", "ENABLE", "LOCK", "RENAME", "ROW_FORMAT"),
)
_NO_COLUMNS = ("CHECK", "CONSTRAINT", "FOREIGN", "INDEX", "KEY", "PRIMARY")
_PARTITIONS = ("PARTITION", "SYSTEM", "PERIOD")
# Engines that keep no rows of their own: the table's rows are no longer in it.
_KEEP_NOTHING = (
    *("BLACKHOLE", "CONNECT", "FEDERATED", "FEDERATEDX", "MERGE", "MRG_MYISAM", "NULL", "SPIDER"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A new condition that a statement puts on a table's rows.

    columns: columns of a unique key that are whole in it.
    """

    what: str
    columns: tuple[str, ...] = ()


def limits_of(clause: Sequence[Word]) -> list[Limit]:
    """Return the conditions that a clause of ALTER TABLE puts on existing rows."""
    verb, depth = clause[0], clause[0].depth
    found = [Limit(what="a partition for some values alone")] if _is_divided(clause) else []
    if not verb.is_word("ADD", "CHANGE", "MODIFY"):
        return found
    rest = _behind(clause[1:], "COLUMN", "IF", "NOT", "EXISTS")
    if rest and rest[0].is_mark("("):
        inside = [word for word in rest[1:] if word.depth > depth]
        parts = clauses(inside, depth + 1)
        return found + [limit for one in parts for limit in _limits(one, one[0].text)]
    return found + _limits(rest, rest[0].text if rest else "")


def _behind(words: Sequence[Word], *passed: str) -> Sequence[Word]:
    at = 0
    while at < len(words) and words[at].is_word(*passed):
        at += 1
    return words[at:]


def _is_divided(clause: Sequence[Word]) -> bool:
    """Return whether some rows may no longer have a partition."""
    if clause[0].is_word("REORGANIZE"):
        return True
    for at, word in enumerate(clause[:-1]):
        if word.is_word("PARTITION") and clause[at + 1].is_word("BY"):
            said = clause[at + 2 :]
            takes_all = any(one.is_word("MAXVALUE", "DEFAULT", "HASH", "KEY") for one in said)
            return not takes_all
    return False


def _limits(words: Sequence[Word], column: str) -> list[Limit]:
    depth = words[0].depth if words else 0
    found = []
    for at, word in enumerate(words):
        if word.depth != depth:
            continue
        if word.is_word("UNIQUE", "PRIMARY"):
            columns = key_columns(words[at:]) if _is_key(words[:at]) else (column,)
            kind = "unique" if word.is_word("UNIQUE") else "primary"
            found.append(Limit(what=f"a {kind} key on {', '.join(columns)}", columns=columns))
        elif word.is_word("CHECK"):
            found.append(Limit(what="a check"))
        elif word.is_word("REFERENCES"):
            found.append(Limit(what="a foreign key"))
    return found


def _is_key(before: Sequence[Word]) -> bool:
    """Return whether a key is a separate clause, by the words before UNIQUE; else it is a
    column's.
    """
    return not before or before[0].is_word("CONSTRAINT")


def key_columns(words: Sequence[Word]) -> tuple[str, ...]:
    """Return the columns in the first parentheses that are whole in a key."""
    opening = next((at for at, word in enumerate(words) if word.is_mark("(")), len(words))
    inside = []
    for word in words[opening + 1 :]:
        if word.depth <= words[opening].depth and word.is_mark(")"):
            break
        inside.append(word)
    parts = clauses(inside, words[opening].depth + 1) if inside else []
    return tuple(part[0].text for part in parts if not any(w.is_mark("(") for w in part))


def loses_when_ignored(clause: Sequence[Word]) -> bool:
    """Return whether a clause may delete or change rows if errors are ignored."""
    if limits_of(clause):
        return True
    first = clause[0]
    if first.is_word("DROP"):
        # Rows that a key distinguished may be equal in it without one of its columns.
        return not (len(clause) > 1 and clause[1].is_word(*_NO_COLUMNS))
    if first.is_word("ADD") and len(clause) > 1 and clause[1].is_word(*_PARTITIONS):
        return True
    return not first.is_word(*_HARMLESS)


def engine_keeps_nothing(words: Sequence[Word]) -> str:
    """Return the engine that an ALTER names if it keeps no rows; else empty."""
    for at, word in enumerate(words):
        if word.is_word("ENGINE") and word.depth == 0:
            rest = [one for one in words[at + 1 : at + 3] if not one.is_mark("=")]
            if rest and rest[0].text.upper() in _KEEP_NOTHING:
                return rest[0].text.lower()
    return ""
