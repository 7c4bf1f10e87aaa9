"""A captured table as the catalogue has it at one moment, and what a difference means.

Kept from one look to the next, also over restarts, to notice what the server changes without
sending rows. Comparing is pure; the one question that only rows can answer (did a new partition
bring rows?) is left to `ddl_watch.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.source.type_shape import (
    TYPES,
    TypeShape,
    find_altered,
    label_renamed,
)
from penstock.model import Identity, PenstockError, TableDefinition, TableName
from penstock.model.patterns import as_pattern

# The columns of a table's replica identity, `*` for all; null for NOTHING: the server refuses
# updates and deletes then. Also used by catalog.py.
IDENTITY_COLUMNS = """
    case {table}.relreplident when 'f' then array['*'] when 'n' then null else array(
        select ia.attname::text
          from pg_index as ix
         cross join unnest(ix.indkey::int2[]) with ordinality as ip(attnum, place)
          join pg_attribute as ia on ia.attrelid = ix.indrelid and ia.attnum = ip.attnum
         where ix.indrelid = {table}.oid
           and ip.place <= ix.indnkeyatts
           and ix.indisvalid
           and ({table}.relreplident = 'd' and ix.indisprimary and ix.indimmediate
                or {table}.relreplident = 'i' and ix.indisreplident)
         order by 1) end
"""
KEY_COLUMNS = """
    array(
        select ka.attname::text
          from pg_index as kx
         cross join unnest(kx.indkey::int2[]) with ordinality as kp(attnum, place)
          join pg_attribute as ka on ka.attrelid = kx.indrelid and ka.attnum = kp.attnum
         where kx.indrelid = {table}.oid
           and kp.place <= kx.indnkeyatts
           and kx.indisvalid
           and kx.indimmediate
           and kx.indisprimary
         order by 1)
"""

# A transaction id is compared for equality only: a catalogue row with another xmin is another row.
SHAPES = """
    with recursive captured(id) as (
        select c.oid
          from pg_class as c
          join pg_namespace as n on n.oid = c.relnamespace
         where c.oid = any(%(ids)s::bigint[]::oid[])
            or (n.nspname, c.relname) in (
                   select w.schema, w.name
                     from unnest(%(schemas)s::text[], %(names)s::text[]) as w(schema, name))
    ),
    tree(root, id, parent, link_xid, link_command) as (
        select k.id, i.inhrelid, i.inhparent, i.xmin, i.cmin
          from captured as k
          join pg_inherits as i on i.inhparent = k.id
          join pg_class as c on c.oid = i.inhrelid and c.relispartition
         union all
        select t.root, i.inhrelid, i.inhparent, i.xmin, i.cmin
          from tree as t
          join pg_inherits as i on i.inhparent = t.id
          join pg_class as c on c.oid = i.inhrelid and c.relispartition
    ),
    shape as (
        select k.id,
               json_build_object(
                   'source_id', c.oid::bigint,
                   'schema', n.nspname,
                   'name', c.relname,
                   'kind', c.relkind,
                   'persistence', c.relpersistence,
                   'identity', c.relreplident,
                   'identity_columns', {root_identity},
                   'key_columns', {root_key},
                   'file', c.relfilenode::bigint,
                   'published', {published},
                   'keys', (
                       select json_agg(json_build_array(i.indexrelid::bigint, i.indisprimary,
                                                        i.indisreplident) order by i.indexrelid)
                         from pg_index as i
                        where i.indrelid = k.id
                          and (i.indisprimary or i.indisreplident)
                          and i.indisvalid),
                   'attributes', (
                       select json_agg(json_build_array(
                                  a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
                                  a.attnotnull, a.attgenerated,
                                  case when a.attgenerated <> ''
                                       then (select d.oid::bigint
                                               from pg_attrdef as d
                                              where d.adrelid = k.id and d.adnum = a.attnum) end,
                                  a.xmin::text) order by a.attnum)
                         from pg_attribute as a
                        where a.attrelid = k.id
                          and a.attnum > 0
                          and not a.attisdropped),
                   'types', {types},
                   'parts', (
                       select json_agg(json_build_array(
                                  t.id::bigint, t.parent::bigint, pn.nspname, p.relname,
                                  p.relkind, p.relpersistence, p.relfilenode::bigint,
                                  s.xmin::text, t.link_xid::text,
                                  t.link_command::text::bigint, p.xmin::text,
                                  {part_identity}) order by t.id)
                         from tree as t
                         join pg_class as p on p.oid = t.id
                         join pg_namespace as pn on pn.oid = p.relnamespace
                         -- a system column is as old as its table and never changed
                         join pg_attribute as s on s.attrelid = t.id and s.attnum = -1
                        where t.root = k.id)
               )::text as text
          from captured as k
          join pg_class as c on c.oid = k.id
          join pg_namespace as n on n.oid = c.relnamespace
    )
    select id::bigint, md5(text) as digest, {text} as text
      from shape
"""

PUBLISHED = """(
    select case when p.puballtables then 'all' else coalesce(
               (select 'table ' || r.oid || {narrowed}
                  from pg_publication_rel as r
                 where r.prpubid = p.oid and r.prrelid = k.id),
               {by_schema}) end
           || case when p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate
                        and (p.pubviaroot or c.relkind <> 'p')
                   then '' else ' narrowed' end
      from pg_publication as p
     where p.pubname = %(publication)s)
"""
NARROWED_15 = """case when r.prqual is not null or r.prattrs is not null
                          then ' narrowed' else '' end"""
BY_SCHEMA_15 = """(select 'schema ' || s.oid
                    from pg_publication_namespace as s
                   where s.pnpubid = p.oid and s.pnnspid = c.relnamespace)"""


def shapes_sql(server_version: int, *, with_text: bool) -> str:
    """Return the query of shapes, or of their digests only; version as libpq gives it (150020)."""
    since_15 = server_version >= 150000
    published = PUBLISHED.format(
        narrowed=NARROWED_15 if since_15 else "''",
        by_schema=BY_SCHEMA_15 if since_15 else "null",
    )
    return SHAPES.format(
        published=published,
        root_identity=IDENTITY_COLUMNS.format(table="c"),
        root_key=KEY_COLUMNS.format(table="c"),
        part_identity=IDENTITY_COLUMNS.format(table="p"),
        types=TYPES,
        text="text" if with_text else "null::text",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeShape:
    """A live column. expression: oid of a generated column's expression, 0 for others."""

    number: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: str
    expression: int
    xid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShape:
    """A partition at any depth. kind `p`: partitioned itself, and without rows of its own.

    created_xid: the transaction that made it. link_xid, link_command: the transaction, and the
    command in it, that made it a partition. changed_xid: the one that last changed its pg_class
    row, as TRUNCATE does.
    """

    id: int
    parent: int
    name: TableName
    kind: str
    persistence: str
    file: int
    created_xid: str
    link_xid: str
    link_command: int
    changed_xid: str
    identity_columns: tuple[str, ...] | None

    @property
    def made_in_place(self) -> bool:
        """Return whether it was a partition from the transaction on that created it."""
        return self.created_xid == self.link_xid


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """A captured table. published: how it is in the publication; None: it is not.

    identity_columns: those of its replica identity, `*` for all, None for NOTHING. key_columns:
    of its primary key, if it is checked at once. types: the user's own below its columns.
    """

    digest: str
    source_id: int
    name: TableName
    kind: str
    persistence: str
    identity: str
    identity_columns: tuple[str, ...] | None
    file: int
    published: str | None
    keys: tuple[tuple[int, bool, bool], ...]
    attributes: tuple[AttributeShape, ...]
    parts: tuple[PartShape, ...]
    key_columns: tuple[str, ...] = ()
    types: tuple[TypeShape, ...] = ()

    def definition(self) -> TableDefinition:
        """Return the known facts of a table that the catalogue no longer has. Its messages have the
        columns.
        """
        return TableDefinition(
            name=self.name,
            source_id=self.source_id,
            columns=(),
            primary_key=self.key_columns,
            identity=Identity(self.identity),
            is_partitioned=self.kind == "p",
        )

    @property
    def leaves(self) -> dict[int, PartShape]:
        """The partitions that hold rows."""
        return {part.id: part for part in self.parts if part.kind != "p"}


class ReloadReason(StrEnum):
    """Why a table's contents in the log are no longer the source's."""

    REWRITTEN = "its rows were rewritten with other values (ALTER TABLE)"
    COLUMN_REMADE = "a column was dropped and made again under the same name"
    COLUMN_UNGENERATED = "a generated column became an ordinary one, or the other way round"
    PARTITION_ATTACHED = "a partition with rows was attached"
    PARTITION_GONE = "a partition was detached or dropped"
    PARTITION_REWRITTEN = "a partition was truncated or rewritten separately"
    PARTITION_IDENTITY = "a partition had a lesser replica identity for a while"
    WITHOUT_COLUMNS = "it had no columns for a while"
    GENERATED_IDENTITY = "its replica identity had a generated column for a while"
    LABEL_RENAMED = "a label of an enum was renamed"
    MADE_ANEW = "it was dropped and made again"
    CATALOGUE_AHEAD = "its columns had changed again when they were looked up"
    NEW = "it is captured from now on"
    WAS_UNLOGGED = "it was unlogged for a while"
    RESENT = "its rows were asked for again (penstock resend)"
    WAS_UNPUBLISHED = "it was out of the publication, or published in part, for a while"


class TableRenamed(PenstockError):
    """A captured table has another name or schema now."""

    code = "PG46"
    retry = "operator"


class ChangesNotLogged(PenstockError):
    """Changes of a captured table, or of a partition of it, are not in the server's log."""

    code = "PG47"
    retry = "operator"


class PartitionIdentityDiffers(PenstockError):
    """A partition's replica identity lacks columns of the partitioned table's."""

    code = "PG63"
    retry = "operator"


class IdentityGenerated(PenstockError):
    """A captured table's replica identity has a generated column, which is never sent."""

    code = "PG64"
    retry = "operator"


class TableWithoutColumns(PenstockError):
    """A captured table has no columns any more, or only generated ones: its rows are not sent."""

    code = "PG65"
    retry = "operator"

    def __init__(self, name: TableName) -> None:
        """Keep the arguments. `name` is the name under which the table is captured."""
        super().__init__(
            f"{name} has no columns any more, or only generated ones: nothing of its rows is sent",
            hint=f"Leave it out: put '!{as_pattern(name)}' into [source] tables and start again. "
            "Once it has columns and the pipeline is past this place it may be taken in again: it "
            "is then read as a whole.",
            table=str(name),
        )


class TableNotPublished(PenstockError):
    """A captured table is not, or only in part, in the publication: changes are not sent."""

    code = "PG48"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeDifference:
    """The result of comparing two looks at a table.

    stop: what cannot be replicated. reload: why the table must be read again. changed: the shape
    differs and rows do not. new_leaves: partitions that may have brought rows. truncated_leaves:
    all that was found is that every leaf has a new file since the same transaction, as TRUNCATE of
    the whole table does, which is sent.
    """

    NONE: ClassVar[ShapeDifference]

    stop: PenstockError | None = None
    reload: ReloadReason | None = None
    changed: bool = False
    new_leaves: tuple[PartShape, ...] = ()
    truncated_leaves: bool = False


ShapeDifference.NONE = ShapeDifference()


def compare(before: TableShape, after: TableShape) -> ShapeDifference:
    """Return the consequences of the difference between two shapes of one table. Pure."""
    if before.source_id != after.source_id:
        stop = why_not_followed(after)
        return ShapeDifference(stop=stop, reload=None if stop else ReloadReason.MADE_ANEW)
    stop = _stop(before, after)
    if stop is not None:
        return ShapeDifference(stop=stop)
    attributes = _attributes(before, after)
    if attributes.reload or attributes.stop:
        return attributes
    stop = find_altered(before.types, after.types, after.name)
    if stop is not None:
        return ShapeDifference(stop=stop)
    if label_renamed(before.types, after.types):
        return ShapeDifference(reload=ReloadReason.LABEL_RENAMED)
    parts = _parts(before, after)
    return replace(parts, changed=attributes.changed)


def identity_covers(
    part: Iterable[str] | None, root: Iterable[str] | None, key: Iterable[str]
) -> bool:
    """Return whether a partition's before images hold all that the root's should. Pure.

    The server sends changes of a partition under the root with the values that the PARTITION's
    replica identity has put into its log, and silently NULL for others. part, root: the columns
    of both identities, None for NOTHING. key: the root's primary key: rows are found by it, or
    else by all columns, if the root has no identity. A partition without one is never wrong: the
    server refuses to update it.
    """
    if part is None:
        return True
    has, own = set(part), set(root or ())
    if not has and not own:
        return True
    needs = own or set(key) or {"*"}
    return "*" in has or ("*" not in needs and needs <= has)


def _wrong_identity(shape: TableShape) -> PartShape | None:
    root, key = shape.identity_columns, shape.key_columns
    for leaf in shape.leaves.values():
        if not identity_covers(leaf.identity_columns, root, key):
            return leaf
    return None


def _has_columns(shape: TableShape) -> bool:
    return any(not attribute.generated for attribute in shape.attributes)


def _generated_identity(shape: TableShape) -> TableName | None:
    """Return the table or partition whose identity has columns that are not sent."""
    generated = {attribute.name for attribute in shape.attributes if attribute.generated}
    if generated & set(shape.identity_columns or ()):
        return shape.name
    for leaf in shape.leaves.values():
        if generated & set(leaf.identity_columns or ()):
            return leaf.name
    return None


def why_not_followed(shape: TableShape) -> PenstockError | None:
    """Return why a table cannot be followed as it is now, whatever its previous shape. Pure."""
    unlogged = [shape.name] if shape.kind == "r" and shape.persistence != "p" else []
    unlogged += [leaf.name for leaf in shape.leaves.values() if leaf.persistence != "p"]
    if unlogged:
        return ChangesNotLogged(
            f"{unlogged[0]} is unlogged now: its changes are not sent",
            hint=f"Run: alter table {quote(*unlogged[0])} set logged; and start again: the table "
            "is then read again.",
            table=str(shape.name),
        )
    if not _has_columns(shape):
        return TableWithoutColumns(shape.name)
    foreign = [leaf.name for leaf in shape.leaves.values() if leaf.kind == "f"]
    if foreign:
        return ChangesNotLogged(
            f"{shape.name} has the partition {foreign[0]} on another server now",
            hint=f"Run: alter table {quote(*shape.name)} detach partition {quote(*foreign[0])}; "
            "and start again: the table is then read again.",
            table=str(shape.name),
        )
    wrong = _wrong_identity(shape)
    if wrong is not None:
        return PartitionIdentityDiffers(
            f"partition {wrong.name} has a lesser replica identity than {shape.name}: what its "
            "changes are sent with is incomplete",
            hint=f"Run: alter table {quote(*wrong.name)} replica identity full; and start again: "
            "the table is then read again.",
            table=str(shape.name),
        )
    made = _generated_identity(shape)
    if made is not None:
        return IdentityGenerated(
            f"the replica identity of {made} has a generated column now: what is sent does not "
            f"identify rows",
            hint="Run penstock doctor, which has the SQL that fixes it, and start again: the table "
            "is then read again.",
            table=str(shape.name),
        )
    return _unpublished_error(shape)


def renamed_error(name: TableName, new_name: TableName) -> TableRenamed:
    """Return the error for a captured table whose new name is not captured."""
    back = f"alter table {quote(*new_name)} rename to {quote(name.name)};"
    if name.schema != new_name.schema:
        back = f"alter table {quote(*new_name)} set schema {quote(name.schema)};"
    return TableRenamed(
        f"{name} is named {new_name} now",
        hint=f"Undo it ({back}) and start again; or have its new name captured ([source] "
        f"tables with '{as_pattern(new_name)}', newTables = \"add\") and start again: its "
        "rows are copied as those of a new table, and the old one stays in the target as it "
        "is.",
        table=str(name),
    )


def _stop(before: TableShape, after: TableShape) -> PenstockError | None:
    if before.name != after.name:
        return renamed_error(before.name, after.name)
    return why_not_followed(after)


def _unpublished_error(after: TableShape) -> PenstockError | None:
    if after.published is not None and not after.published.endswith("narrowed"):
        return None
    what = (
        "is not in the publication any more"
        if after.published is None
        else "is published in part only (operations, rows or columns)"
    )
    return TableNotPublished(
        f"{after.name} {what}: changes are not sent",
        hint="Run penstock doctor, which has the SQL that fixes it, and start again: the table is "
        "then read again.",
        table=str(after.name),
    )


def _attributes(before: TableShape, after: TableShape) -> ShapeDifference:
    """Return the difference in columns, keys and identity."""
    old = {attribute.number: attribute for attribute in before.attributes}
    new = {attribute.number: attribute for attribute in after.attributes}
    missed = _missed_reason(before, after)
    if missed is not None:
        return ShapeDifference(reload=missed)
    common = [(old[number], new[number]) for number in old.keys() & new.keys()]
    added = [new[number] for number in new.keys() - old.keys()]
    dropped = [old[number] for number in old.keys() - new.keys()]
    dropped_names = {attribute.name for attribute in dropped if not attribute.generated}
    if any(attribute.name in dropped_names for attribute in added if not attribute.generated):
        return ShapeDifference(reload=ReloadReason.COLUMN_REMADE)
    if any(a.generated != b.generated for a, b in common):
        return ShapeDifference(reload=ReloadReason.COLUMN_UNGENERATED)
    touched = [b for a, b in common if a.xid != b.xid] + added
    if _has_new_file(before, after) and any(not attribute.generated for attribute in touched):
        return ShapeDifference(reload=ReloadReason.REWRITTEN)
    changed = (
        bool(added or dropped)
        or any(replace(a, xid="") != replace(b, xid="") for a, b in common)
        or before.identity != after.identity
        or before.keys != after.keys
    )
    return ShapeDifference(changed=changed)


def _missed_reason(before: TableShape, after: TableShape) -> ReloadReason | None:
    """Return why changes were not sent, or not whole, as the table was before."""
    if before.published is None or before.published != after.published:
        return ReloadReason.WAS_UNPUBLISHED
    if before.persistence != "p" or any(p.persistence != "p" for p in before.leaves.values()):
        return ReloadReason.WAS_UNLOGGED
    if not _has_columns(before):
        return ReloadReason.WITHOUT_COLUMNS
    if _wrong_identity(before) is not None:
        return ReloadReason.PARTITION_IDENTITY
    if _generated_identity(before) is not None:
        return ReloadReason.GENERATED_IDENTITY
    return None


def _has_new_file(before: TableShape, after: TableShape) -> bool:
    if before.file != after.file:
        return True
    old = before.leaves
    return any(id_ in old and old[id_].file != part.file for id_, part in after.leaves.items())


def _parts(before: TableShape, after: TableShape) -> ShapeDifference:
    """Return the difference in partitions. Other tables need nothing for a new file, because
    TRUNCATE is sent.
    """
    old, new = before.leaves, after.leaves
    if old.keys() - new.keys():
        return ShapeDifference(reload=ReloadReason.PARTITION_GONE)
    links = {part.id: (part.parent, part.link_xid) for part in before.parts}
    moved = (p for p in after.parts if p.id in links and links[p.id] != (p.parent, p.link_xid))
    if any(moved):
        return ShapeDifference(reload=ReloadReason.PARTITION_ATTACHED)
    new_leaves = tuple(new[id_] for id_ in sorted(new.keys() - old.keys()))
    replaced = [part for id_, part in new.items() if id_ in old and old[id_].file != part.file]
    if not replaced:
        return ShapeDifference(new_leaves=new_leaves)
    if len(replaced) == len(old) and len({part.changed_xid for part in replaced}) == 1:
        return ShapeDifference(new_leaves=new_leaves, truncated_leaves=True)
    return ShapeDifference(reload=ReloadReason.PARTITION_REWRITTEN)


def new_links(before: TableShape, after: TableShape, leaf: PartShape) -> Iterable[PartShape]:
    """Return the partitions from a leaf upwards whose links are new: itself, its parent, ..."""
    known = {part.id for part in before.parts}
    by_id = {part.id: part for part in after.parts}
    part: PartShape | None = leaf
    while part is not None and part.id not in known:
        yield part
        part = by_id.get(part.parent)
