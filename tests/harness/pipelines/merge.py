"""Helpers of tests of applying: short functions for changes, and the tables that most tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import Applying
from penstock.model import Relation

Start = Callable[..., Applying]
POOR = "poor_loader"
ITEM = relation(("id", "integer", "int32"), ("name", "text", "string"), ("n", "integer", "int32"))
TABLE = "create table public.t (id int primary key, name text, n int)"
PARENT = relation(("id", "integer", "int32"), ("code", "text", "string"), name="parent")
CHILD = relation(("id", "integer", "int32"), ("parent", "integer", "int32"), name="child")
FAMILY = """
    create table public.parent (id int primary key, code text {unique});
    create table public.child (id int primary key,
        parent int references public.parent on delete {action} {deferrable});
    insert into public.parent values (1, 'a'), (2, 'b');
    insert into public.child values (10, 1), (11, 1), (20, 2);
"""


def insert(shape: Relation, *row: Any) -> tuple[Relation, Change]:
    """Return an inserted row."""
    return shape, Change(op="I", gsn=0, after=row)


def update(
    shape: Relation, *row: Any, old: tuple[Any, ...] | None = None, absent: tuple[int, ...] = ()
) -> tuple[Relation, Change]:
    """Return an updated row; old: the before image, if the source sends one."""
    return shape, Change(op="U", gsn=0, after=row, before=old, absent=frozenset(absent))


def delete(shape: Relation, *row: Any) -> tuple[Relation, Change]:
    """Return a deleted row."""
    return shape, Change(op="D", gsn=0, before=row)
