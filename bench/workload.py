"""The workloads W and W1 of docs/performance.md, written by the server itself.

W: a table of 10 mixed columns with 500,000 rows, then 1,000,000 changes (50 % inserts, 35 %
updates, 15 % deletes) of 50 rows a transaction. W1: 300,000 changes of one row a transaction.
Both are deterministic: the same seed gives the same rows. Narrow rows have three columns, but the
same keys and the same kinds of changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

CREATE_TABLE = """
    create table if not exists {table} (
        id bigint primary key, n int, t text, amount numeric(12,2), at timestamptz,
        flag bool, doc jsonb, f float8, u uuid, note text)
"""

ROW = """
    {id}, ({id}::bigint * 7919 % 1000000)::int, 'customer number ' || {id},
    (({id}::bigint * 31) % 10000000)::numeric / 100, timestamptz '2024-01-01 00:00:00+00'
        + ({id} % 31536000) * interval '1 second' + {id} % 1000 * interval '1 millisecond',
    {id} % 3 = 0, jsonb_build_object('id', {id}::bigint, 'tags', jsonb_build_array('a', {id} % 10)),
    sqrt({id}::float8), md5({id}::text)::uuid, case when {id} % 4 = 0 then 'note ' || {id} end
"""

UPDATE = "n = n + 1, amount = amount + 1, note = 'updated ' || i"

CREATE_NARROW_TABLE = """
    create table if not exists {table} (id bigint primary key, n int, t text)
"""

NARROW_ROW = "{id}, ({id}::bigint * 7919 % 1000000)::int, 'customer ' || {id}"

NARROW_UPDATE = "n = n + 1, t = 'updated ' || i"

FILL = "insert into {table} select {row} from generate_series(1, {count}) i"

# Inserts continue after the last id, updates walk through the first rows, deletes follow the
# inserts at a distance: every statement hits exactly its rows.
CHANGES = """
create or replace procedure {procedure}(first_id bigint, transaction_count int,
                                        insert_count int, update_count int, delete_count int)
language plpgsql as $$
declare
    next_id bigint := first_id; next_update bigint := 1; next_delete bigint := {first_delete};
begin
    for i in 1..transaction_count loop
        insert into {table} select {row}
          from generate_series(next_id, next_id + insert_count - 1) g;
        update {table} set {update}
         where id between next_update and next_update + update_count - 1;
        delete from {table} where id between next_delete and next_delete + delete_count - 1;
        commit;
        next_id := next_id + insert_count;
        next_update := next_update + update_count;
        if next_update > 190000 then next_update := 1; end if;
        next_delete := next_delete + delete_count;
    end loop;
end $$
"""

SINGLE = (
    """
create or replace procedure {procedure}(first_id bigint, change_count int)
language plpgsql as $$
declare next_id bigint := first_id;
begin
    for i in 1..change_count loop
        if i % 20 < 10 then
            insert into {table} select """
    + ROW.format(id="next_id")
    + """;
            next_id := next_id + 1;
        elsif i % 20 < 17 then
            update {table} set n = n + 1, note = 'updated ' || i where id = 1 + i % 190000;
        else
            delete from {table} where id = next_id - (i % 20) + 7;
        end if;
        commit;
    end loop;
end $$
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Size of W; the defaults are W itself. narrow: rows of three columns."""

    table: str = "public.w"
    base_row_count: int = 500_000
    change_count: int = 1_000_000
    rows_per_transaction: int = 50
    narrow: bool = False

    @property
    def tables(self) -> list[str]:
        """Return the name of the one table."""
        return [self.table]

    @property
    def _row(self) -> str:
        return NARROW_ROW if self.narrow else ROW

    def create(self, url: str, *, filled: bool = True) -> None:
        """Create the table and, unless told not to, its base rows."""
        with psycopg.connect(url, autocommit=True) as connection:
            create = CREATE_NARROW_TABLE if self.narrow else CREATE_TABLE
            connection.execute(create.format(table=self.table))
            if filled:
                row, count = self._row.format(id="i"), self.base_row_count
                connection.execute(FILL.format(table=self.table, row=row, count=count))

    def change(self, url: str, *, first_id: int | None = None, first_delete: int = 200_001) -> int:
        """Commit the changes; return how many row changes there were.

        first_id: of the inserted rows. first_delete: lowest id of the deleted rows.
        """
        procedure = self.table + "_changes"
        first = first_id if first_id is not None else self.base_row_count + 1
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            if self.rows_per_transaction == 1:
                connection.execute(SINGLE.format(table=self.table, procedure=procedure))
                connection.execute(f"call {procedure}({first}, {self.change_count})")
                return self.change_count
            per = self.rows_per_transaction
            inserts, updates = per // 2, per * 35 // 100
            deletes = per - inserts - updates
            count = self.change_count // per
            row = self._row.format(id="g")
            update = NARROW_UPDATE if self.narrow else UPDATE
            connection.execute(
                CHANGES.format(
                    table=self.table,
                    procedure=procedure,
                    row=row,
                    update=update,
                    first_delete=first_delete,
                )
            )
            connection.execute(
                f"call {procedure}({first}, {count}, {inserts}, {updates}, {deletes})"
            )
            return count * per


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyTables:
    """The changes of a workload, spread over several tables that are changed in turn.

    Attributes:
        whole: Its rows and changes are divided among the tables.
        count: Number of tables: w0, w1 and so on.
        rounds: Of changes to all tables in turn, so that each segment has rows of each table.
    """

    whole: Workload
    count: int = 20
    rounds: int = 10

    @property
    def shares(self) -> list[Workload]:
        """Return the share of each table, with the changes of one round."""
        return [
            replace(
                self.whole,
                table=f"{self.whole.table}{number}",
                base_row_count=self.whole.base_row_count // self.count,
                change_count=self.whole.change_count // self.count // self.rounds,
            )
            for number in range(self.count)
        ]

    @property
    def tables(self) -> list[str]:
        """Return the names."""
        return [share.table for share in self.shares]

    def create(self, url: str) -> None:
        """Create the tables and their base rows."""
        for share in self.shares:
            share.create(url)

    def change(self, url: str) -> int:
        """Commit the changes of all tables, in turn; return their number."""
        return sum(
            share.change(
                url,
                first_id=share.base_row_count + 1 + number * share.change_count,
                first_delete=share.base_row_count // 2 + number * share.change_count // 5,
            )
            for number in range(self.rounds)
            for share in self.shares
        )
