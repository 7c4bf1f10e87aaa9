"""Find the effects of a statement in the binlog on tables, and whether row events show them.

Pure: only the words decide, nothing is looked up. A statement that is not understood is reported,
never skipped. ALTER IGNORE ignores errors, and so do the tools that copy a table's rows with INSERT
IGNORE: rows that a key or a check refuses are left out, values that a type does not hold are cut,
and no row event shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.engines.mysql.source.added_columns import Added, added_column
from penstock.engines.mysql.source.ddl_words import Word, WordKind, clauses, words_of
from penstock.model import TableName

if TYPE_CHECKING:
    from penstock.codec.mysql.binlog_query import Query
    from penstock.engines.mysql.connect import ServerVersion

# First words of clauses that affect no row, or only new columns.
_LOSSLESS = (
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
    """Return whether UNIQUE begins a clause of its own, judged by the words before it; otherwise it
    belongs to a column.
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
    return not first.is_word(*_LOSSLESS)


def engine_keeps_nothing(words: Sequence[Word]) -> str:
    """Return the engine that an ALTER names if it keeps no rows; else empty."""
    for at, word in enumerate(words):
        if word.is_word("ENGINE") and word.depth == 0:
            rest = [one for one in words[at + 1 : at + 3] if not one.is_mark("=")]
            if rest and rest[0].text.upper() in _KEEP_NOTHING:
                return rest[0].text.lower()
    return ""


def _keywords(text: str) -> frozenset[str]:
    return frozenset(text.split())


# First words of statements that change no table's shape and no rows.
_HARMLESS = _keywords(
    """BEGIN BINLOG CACHE CHANGE CHECK CHECKSUM COMMENT COMMIT END EXPLAIN FLUSH GRANT
    HANDLER HELP INSTALL KILL LOCK OPTIMIZE PURGE RELEASE RESET RESTART REVOKE ROLLBACK
    SAVEPOINT SHOW SHUTDOWN SIGNAL START STOP UNINSTALL UNLOCK USE XA"""
)
# Logged only because functions in them wrote: as text, and the written tables are not known.
_CALLS = _keywords("DO SELECT")
_WRITES = _keywords("CALL DELETE EXECUTE IMPORT INSERT LOAD REPLACE UPDATE WITH VALUES")
_NOT_COLUMNS = _keywords(
    """CHECK CONSTRAINT FOREIGN FULLTEXT INDEX KEY PARTITION PERIOD PRIMARY SPATIAL SYSTEM UNIQUE
    VECTOR"""
)
# Words that may follow DROP besides a column's name.
_NOT_DROPPED = _keywords(
    """CHECK CONSTRAINT FOREIGN INDEX KEY PARTITION PERIOD PRIMARY SYSTEM TABLESPACE"""
)
ALL_COLUMNS = "*"
_PARTITION_LOSSES = frozenset(("DROP", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT"))
_CHARSET_WORDS = ("CHARACTER", "CHARSET", "CHAR", "SET")


class Doing(StrEnum):
    """The kind of a statement's effect on a table.

    ALTERED: its definition may have changed. EMPTIED: all its rows are deleted. CHANGED_UNSEEN:
    rows changed once, and no row event shows it. CASCADES: rows will change from now on without row
    events. REPAIRED: rows may be lost, unless the engine survives a crash. WRITTEN: rows may have
    changed by a statement that is logged as text. UNKNOWN: the statement is not understood.
    """

    CREATED = "created"
    DROPPED = "dropped"
    RENAMED = "renamed"
    ALTERED = "altered"
    EMPTIED = "emptied"
    CHANGED_UNSEEN = "changed unseen"
    CASCADES = "cascades"
    REPAIRED = "repaired"
    WRITTEN = "written by a statement"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One effect of a statement.

    Attributes:
        table: the table; None is any.
        to: a renamed table's new name.
        if_absent: CREATE TABLE IF NOT EXISTS.
        added: columns that ALTER adds.
        dropped: names of columns that it drops.
        dropped_keys: names of indexes and constraints that it drops.
        columns: old and new names of columns that it renames, all at once.
        redefined: names, after the statement, of columns that get another definition.
        converts: the clause that may convert text to another character set; `*` in redefined then
            stands for all columns.
        limits: the new conditions that ALTER puts on rows.
        what: for CHANGED_UNSEEN and CASCADES, the change in words.
        names: for WRITTEN and UNKNOWN, words that may be a table's name, alone or as
            `schema.name`; if a WRITTEN one has none, it may concern any table.
    """

    doing: Doing
    table: TableName | None = None
    to: TableName | None = None
    if_absent: bool = False
    added: tuple[Added, ...] = ()
    dropped: tuple[str, ...] = ()
    dropped_keys: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    redefined: tuple[str, ...] = ()
    converts: str = ""
    limits: tuple[Limit, ...] = ()
    what: str = ""
    names: frozenset[str] = field(default=frozenset())


class _Reader:
    """Reader that walks over a statement's words."""

    def __init__(
        self,
        words: Sequence[Word],
        schema: str,
        fold: bool,
        *,
        logs_cascades: bool = False,
        is_strict: bool = True,
    ) -> None:
        self.words = words
        self.is_strict = is_strict
        self.logs_cascades = logs_cascades
        self.at = 0
        self.schema = schema
        self.fold = fold

    def peek(self, ahead: int = 0) -> Word:
        at = self.at + ahead
        return self.words[at] if at < len(self.words) else _END

    def accept(self, *words: str) -> bool:
        if self.peek().is_word(*words):
            self.at += 1
            return True
        return False

    def accept_mark(self, mark: str) -> bool:
        if self.peek().is_mark(mark):
            self.at += 1
            return True
        return False

    def skip(self, *words: str) -> None:
        while self.accept(*words):
            pass

    def if_exists(self) -> bool:
        """Skip IF EXISTS or IF NOT EXISTS; return whether either is there."""
        if not self.accept("IF"):
            return False
        self.accept("NOT")
        self.accept("EXISTS")
        return True

    def name(self) -> str:
        word = self.peek()
        if not word.is_name:
            raise _NotUnderstood
        self.at += 1
        return word.text

    def table(self) -> TableName:
        first = self.name()
        if first.startswith(".") or not first:
            raise _NotUnderstood
        schema, name = (first, self.name()) if self.accept_mark(".") else (self.schema, first)
        if self.fold:
            schema, name = schema.lower(), name.lower()
        return TableName(schema, name)

    def rest(self) -> Sequence[Word]:
        return self.words[self.at :]


_END = Word(WordKind.MARK, "")


class _NotUnderstood(Exception):
    """Error: the words are not those of a statement that we know."""


def effects_of(
    query: Query, *, server: ServerVersion | None = None, fold: bool = False
) -> tuple[Effect, ...]:
    """Return the effects of a statement on tables, in order.

    fold: the server keeps names in lower case.
    """
    words = words_of(query, server)
    if not words:
        return ()
    logs_cascades = server is not None and server.mysql(9, 6)
    reader = _Reader(
        words, query.schema, fold, logs_cascades=logs_cascades, is_strict=query.is_strict
    )
    try:
        effects = tuple(_statement(reader))
    except _NotUnderstood:
        return (Effect(doing=Doing.UNKNOWN, names=_names(words, fold)),)
    if query.error:  # CREATE OR REPLACE has dropped the old table before the new one is refused
        return tuple(one for one in effects if one.doing is not Doing.CREATED)
    return effects


def _names(words: Sequence[Word], fold: bool) -> frozenset[str]:
    """Return the words that may be a table's name: a word alone, or a schema, a dot and a word."""
    found = set()
    for at, word in enumerate(words):
        if not word.is_name or (at and words[at - 1].is_mark(".")):
            continue
        name = word.text
        if words[at + 1 : at + 2] and words[at + 1].is_mark(".") and words[at + 2 : at + 3]:
            name += "." + words[at + 2].text
        found.add(name.lower() if fold else name)
    return frozenset(found)


def _cascades(words: Sequence[Word]) -> bool:
    """Return whether a foreign key cascades, which these servers do not log."""
    return any(
        first.is_word("ON")
        and second.is_word("DELETE", "UPDATE")
        and (third.is_word("CASCADE") or (third.is_word("SET") and fourth.is_word("NULL")))
        for first, second, third, fourth in zip(
            words, words[1:], words[2:], [*words[3:], _END], strict=False
        )
    )


def _statement(reader: _Reader) -> list[Effect]:
    if reader.peek().kind is not WordKind.WORD:
        raise _NotUnderstood
    first = reader.name().upper()
    handler = {
        "ALTER": _alter,
        "ANALYZE": _analyze,
        "CREATE": _create,
        "DROP": _drop,
        "RENAME": _rename,
        "REPAIR": _repair,
        "SET": _set,
        "TRUNCATE": _truncate,
    }.get(first)
    if handler is not None:
        return handler(reader)
    if first in _WRITES:
        return [Effect(doing=Doing.WRITTEN, names=_names(reader.words, reader.fold))]
    if first in _CALLS:
        return [Effect(doing=Doing.WRITTEN)]
    if first in _HARMLESS:
        return []
    raise _NotUnderstood


# -- prefixes of other statements -----------------------------------------------------------


def _set(reader: _Reader) -> list[Effect]:
    """Return the effects of SET STATEMENT ... FOR another statement, which MariaDB executes; other
    SETs have none.
    """
    if not reader.accept("STATEMENT"):
        return []
    while reader.peek() is not _END:
        if reader.accept("FOR") and reader.words[reader.at - 1].depth == 0:
            return _statement(reader)
        reader.at += 1
    return []


def _analyze(reader: _Reader) -> list[Effect]:
    """Return the effects of a statement after ANALYZE, which MariaDB executes; ANALYZE TABLE has
    none.
    """
    if reader.accept("FORMAT"):
        reader.accept_mark("=")
        reader.at += 1
    return _statement(reader) if reader.peek().is_word(*_WRITES) else []


def _repair(reader: _Reader) -> list[Effect]:
    reader.skip("NO_WRITE_TO_BINLOG", "LOCAL")
    if not reader.accept("TABLE", "TABLES"):
        return []
    repaired = [Effect(doing=Doing.REPAIRED, table=reader.table())]
    while reader.accept_mark(","):
        repaired.append(Effect(doing=Doing.REPAIRED, table=reader.table()))
    return repaired


# -- CREATE, DROP, RENAME, TRUNCATE --------------------------------------------------------------


def _create(reader: _Reader) -> list[Effect]:
    replaces = False
    if reader.accept("OR"):
        replaces = reader.accept("REPLACE")
    if reader.accept("TEMPORARY"):
        return []
    if reader.accept("TABLE"):
        if_absent = reader.if_exists()
        table = reader.table()
        effects = [Effect(doing=Doing.DROPPED, table=table)] if replaces else []
        if_absent = if_absent and not replaces
        effects.append(Effect(doing=Doing.CREATED, table=table, if_absent=if_absent))
        return effects + _cascading(reader, table)
    reader.skip("ONLINE", "OFFLINE")
    is_unique = reader.accept("UNIQUE")
    reader.skip("FULLTEXT", "SPATIAL", "VECTOR")
    if reader.accept("INDEX"):
        table = _table_behind_on(reader)
        columns = key_columns(reader.rest())
        limit = Limit(what=f"a unique key on {', '.join(columns)}", columns=columns)
        return [Effect(doing=Doing.ALTERED, table=table, limits=(limit,) if is_unique else ())]
    return []


def _cascading(reader: _Reader, table: TableName) -> list[Effect]:
    if reader.logs_cascades or not _cascades(reader.words):
        return []
    what = "a foreign key was added that changes rows (on delete or update)"
    return [Effect(doing=Doing.CASCADES, table=table, what=what)]


def _table_behind_on(reader: _Reader) -> TableName:
    while not reader.accept("ON"):
        if reader.peek() is _END:
            raise _NotUnderstood
        reader.at += 1
    return reader.table()


def _drop(reader: _Reader) -> list[Effect]:
    if reader.accept("TEMPORARY"):
        return []
    if reader.accept("TABLE", "TABLES"):
        reader.if_exists()
        dropped = [Effect(doing=Doing.DROPPED, table=reader.table())]
        while reader.accept_mark(","):
            dropped.append(Effect(doing=Doing.DROPPED, table=reader.table()))
        return dropped
    if reader.accept("DATABASE", "SCHEMA"):
        reader.if_exists()
        name = reader.name()
        schema = name.lower() if reader.fold else name
        return [Effect(doing=Doing.DROPPED, table=TableName(schema, ""))]
    reader.skip("ONLINE", "OFFLINE")
    if reader.accept("INDEX"):
        reader.if_exists()
        keys = (reader.name(),)
        return [Effect(doing=Doing.ALTERED, table=_table_behind_on(reader), dropped_keys=keys)]
    return []


def _rename(reader: _Reader) -> list[Effect]:
    if not reader.accept("TABLE", "TABLES"):
        return []
    reader.if_exists()
    renamed = []
    while True:
        table = reader.table()
        if reader.accept("WAIT"):
            reader.at += 1
        reader.accept("NOWAIT")
        if not reader.accept("TO"):
            raise _NotUnderstood
        renamed.append(Effect(doing=Doing.RENAMED, table=table, to=reader.table()))
        if not reader.accept_mark(","):
            return renamed


def _truncate(reader: _Reader) -> list[Effect]:
    reader.accept("TABLE")
    return [Effect(doing=Doing.EMPTIED, table=reader.table())]


# -- ALTER ---------------------------------------------------------------------------------------


_OTHER_DEFAULT = "the same statement changes its default"
_OTHER_DEFINITION = "the same statement changes its definition"


def _alter(reader: _Reader) -> list[Effect]:
    reader.skip("ONLINE", "OFFLINE")
    ignores = reader.accept("IGNORE")
    if not reader.accept("TABLE"):
        return []
    reader.if_exists()
    table = reader.table()
    if reader.accept("WAIT"):
        reader.at += 1
    reader.accept("NOWAIT")
    added: list[Added] = []
    dropped: list[str] = []
    keys: list[str] = []
    columns: list[tuple[str, str]] = []
    redefined: list[str] = []
    converts: list[str] = []
    limits: list[Limit] = []
    unseen: list[str] = []
    other_defaults: set[str] = set()
    to: TableName | None = None
    for clause in clauses(reader.rest()):
        part = _Reader(clause, reader.schema, reader.fold, is_strict=reader.is_strict)
        limits += limits_of(clause)
        if ignores and loses_when_ignored(clause):
            unseen.append(f"alter ignore ({' '.join(word.text for word in clause[:2]).lower()})")
        if part.peek().is_word("RENAME") and not part.peek(1).is_word("COLUMN", "INDEX", "KEY"):
            to = _renamed_to(part)
            continue
        added += _find_added(part)
        other_defaults |= _columns_with_other_defaults(part)
        dropped += _columns_dropped(part)
        keys += _keys_dropped(part)
        columns += _columns_renamed(part)
        redefined += _columns_redefined(part)
        converts += _conversions(part)
        unseen += _unseen(part)
    if engine := engine_keeps_nothing(reader.rest()):
        unseen.append(f"engine = {engine}, which keeps no rows")
    effects = [
        Effect(
            doing=Doing.ALTERED,
            table=table,
            added=tuple(_changed_again(one, other_defaults, redefined) for one in added),
            dropped=tuple(dropped),
            dropped_keys=tuple(keys),
            columns=tuple(columns),
            redefined=tuple(redefined),
            converts=converts[0] if converts else "",
            limits=tuple(limits),
        )
    ]
    effects += [Effect(doing=Doing.CHANGED_UNSEEN, table=table, what=what) for what in unseen]
    effects += [
        Effect(doing=Doing.CHANGED_UNSEEN, table=other, what="exchange partition")
        for other in _find_exchanged(reader)
    ]
    effects += _cascading(reader, table)
    if to is not None:
        effects.append(Effect(doing=Doing.RENAMED, table=table, to=to))
    return effects


def _find_exchanged(reader: _Reader) -> list[TableName]:
    """Return the tables with which a partition's rows were exchanged."""
    found = []
    for at, word in enumerate(reader.words):
        if word.is_word("EXCHANGE"):
            part = _Reader(reader.words[at:], reader.schema, reader.fold)
            while not part.accept("WITH"):
                if part.peek() is _END:
                    raise _NotUnderstood
                part.at += 1
            part.accept("TABLE")
            found.append(part.table())
    return found


def _renamed_to(part: _Reader) -> TableName:
    part.at = 1
    part.accept("TO", "AS")
    part.accept_mark("=")
    return part.table()


def _find_added(part: _Reader) -> list[Added]:
    part.at = 0
    if not part.accept("ADD"):
        return []
    is_column = part.accept("COLUMN")
    part.if_exists()
    if not is_column and part.peek().is_word(*_NOT_COLUMNS):
        return []
    if part.peek().is_mark("("):
        inside = [word for word in part.rest()[1:] if word.depth > 0]
        return [
            added_column(one)
            for one in clauses(inside, 1)
            if is_column or not one[0].is_word(*_NOT_COLUMNS)
        ]
    return [added_column(part.rest())]


def _columns_with_other_defaults(part: _Reader) -> set[str]:
    """Return the column, in lower case, whose default an ALTER's clause sets or drops."""
    part.at = 0
    if not part.accept("ALTER"):
        return set()
    part.accept("COLUMN")
    part.if_exists()
    return {part.peek().text.lower()}


def _changed_again(added: Added, other_defaults: set[str], redefined: Sequence[str]) -> Added:
    """Return an added column, whose value is unclear if another clause changes the column."""
    name, why = added.name.lower(), ""
    if name in other_defaults:
        why = _OTHER_DEFAULT
    elif name in map(str.lower, redefined):
        why = _OTHER_DEFINITION
    return Added(name=added.name, unclear=added.unclear or why) if why else added


def _columns_renamed(part: _Reader) -> list[tuple[str, str]]:
    """Return old and new name if an ALTER's clause renames a column."""
    part.at = 0
    if part.accept("RENAME"):
        if not part.accept("COLUMN"):
            return []
        part.if_exists()
        old = part.name()
        part.accept("TO")
        return [(old, part.name())]
    if not part.accept("CHANGE"):
        return []
    part.accept("COLUMN")
    part.if_exists()
    old, new = part.name(), part.name()
    return [(old, new)] if new != old else []


def _columns_dropped(part: _Reader) -> list[str]:
    """Return the name of the column that an ALTER's clause drops."""
    part.at = 0
    if not part.accept("DROP"):
        return []
    is_column = part.accept("COLUMN")
    if not is_column and part.peek().is_word(*_NOT_DROPPED):
        return []
    part.if_exists()
    return [part.name()]


def _keys_dropped(part: _Reader) -> list[str]:
    """Return the name of the index or constraint that an ALTER's clause drops."""
    part.at = 0
    if not part.accept("DROP") or not part.accept("INDEX", "KEY", "CONSTRAINT"):
        return []
    part.if_exists()
    return [part.name()]


def _columns_redefined(part: _Reader) -> list[str]:
    """Return the names, after the ALTER, of columns that a clause gives another definition."""
    part.at = 0
    if part.peek().is_word("CONVERT") and part.peek(1).is_word("TO"):
        return [ALL_COLUMNS]
    renames = part.peek().is_word("CHANGE")
    if not part.accept("CHANGE", "MODIFY"):
        return []
    part.accept("COLUMN")
    part.if_exists()
    name = part.name()
    return [part.name() if renames else name]


def _conversions(part: _Reader) -> list[str]:
    """Return the conversion to a character set that an ALTER's clause asks for."""
    part.at = 0
    words = part.words
    if words[0].is_word("CONVERT") and part.peek(1).is_word("TO"):
        charset = next((w.text.lower() for w in words[2:] if not w.is_word(*_CHARSET_WORDS)), "")
        return [f"convert to character set {charset}"]
    if not words[0].is_word("CHANGE", "MODIFY"):
        return []
    for at, word in enumerate(words):
        if word.is_word("CHARSET") or (
            word.is_word("CHARACTER", "CHAR") and part.peek(at + 1).is_word("SET")
        ):
            named = part.peek(at + (1 if word.is_word("CHARSET") else 2))
            return [f"convert to character set {named.text.lower()}"]
    return []


def _unseen(part: _Reader) -> list[str]:
    """Return the row changes of an ALTER's clause that no row event shows."""
    part.at = 0
    first, second = part.peek(), part.peek(1)
    verb = first.text.upper() if first.kind is WordKind.WORD else ""
    if verb in _PARTITION_LOSSES and second.is_word("PARTITION", "TABLESPACE"):
        return [f"{verb.lower()} {second.text.lower()}"]
    if verb == "CONVERT" and second.is_word("PARTITION", "TABLE"):
        return [f"convert {second.text.lower()}"]
    is_computed = any(word.is_word("AS", "GENERATED") and word.depth == 0 for word in part.words)
    if verb in ("CHANGE", "MODIFY") and is_computed:
        return ["a computed column was changed"]
    return []
