"""W and W1 for MySQL and MariaDB, written by the server itself.

The same rows and changes as `workload.py` makes in PostgreSQL: 500,000 rows of 10 mixed columns,
then 1,000,000 changes (50 % inserts, 35 % updates, 15 % deletes) of 50 rows a transaction, or
300,000 changes of one row a transaction. A uuid is binary(16), the type that both servers have.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.connect import Connection, connect, run, value
from penstock.engines.mysql.source.status import read_status

DATABASE = "bench"
COLUMNS = "id, n, t, amount, at, flag, doc, f, u, note"
CREATE_TABLE = """
    create table {table} (
        id bigint primary key, n int, t text, amount decimal(12,2), at timestamp(6) null,
        flag boolean, doc json, f double, u binary(16), note text)
"""
ROW = """
    {id}, {id} * 7919 % 1000000, concat('customer number ', {id}), {id} * 31 % 10000000 / 100,
    timestampadd(microsecond, {id} % 1000 * 1000,
                 timestampadd(second, {id} % 31536000, '2024-01-01 00:00:00')),
    {id} % 3 = 0, json_object('id', {id}, 'tags', json_array('a', {id} % 10)), sqrt({id}),
    unhex(left(sha2({id}, 256), 32)), if({id} % 4 = 0, concat('note ', {id}), null)
"""
FILL = (
    f"insert into {{table}} ({COLUMNS}) select "
    + ROW.format(id="(a.n + 1000 * b.n + 1)")
    + " from numbers a, numbers b where a.n + 1000 * b.n < {count}"
)
CHANGES = (
    f"""
create procedure changes(first_id bigint, transaction_count int, insert_count int,
                         update_count int, delete_count int)
begin
    declare next_id bigint default first_id;
    declare next_update bigint default 1;
    declare next_delete bigint default 200001;
    declare i int default 1;
    while i <= transaction_count do
        start transaction;
        insert into w ({COLUMNS}) select """
    + ROW.format(id="(next_id + g.n)")
    + """ from numbers g where g.n < insert_count;
        update w set n = n + 1, amount = amount + 1, note = concat('updated ', i)
         where id between next_update and next_update + update_count - 1;
        delete from w where id between next_delete and next_delete + delete_count - 1;
        commit;
        set next_id = next_id + insert_count;
        set next_update = next_update + update_count;
        if next_update > 190000 then set next_update = 1; end if;
        set next_delete = next_delete + delete_count;
        set i = i + 1;
    end while;
end
"""
)
SINGLE = (
    f"""
create procedure single_changes(first_id bigint, change_count int)
begin
    declare next_id bigint default first_id;
    declare i int default 1;
    while i <= change_count do
        if i % 20 < 10 then
            insert into w ({COLUMNS}) select """
    + ROW.format(id="next_id")
    + """;
            set next_id = next_id + 1;
        elseif i % 20 < 17 then
            update w set n = n + 1, note = concat('updated ', i) where id = 1 + i % 190000;
        else
            delete from w where id = next_id - (i % 20) + 7;
        end if;
        set i = i + 1;
    end while;
end
"""
)
NUMBERS = """
    insert into numbers select a.n + 10 * b.n + 100 * c.n from {digits} a, {digits} b, {digits} c
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A workload in a server's binlog. begin, end: the places before and after its changes."""

    begin: BinlogPosition
    end: BinlogPosition
    gtids: str
    row_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLWorkload:
    """Size of W; the defaults are W itself."""

    base_row_count: int = 500_000
    change_count: int = 1_000_000
    rows_per_transaction: int = 50

    def create(self, url: str) -> None:
        """Create the database with the table and its base rows, out of the binlog."""
        with connect(url, application_name="bench") as connection:
            do(connection, "set session sql_log_bin = 0")
            do(connection, f"create database {DATABASE}")
            do(connection, f"use {DATABASE}")
            do(connection, "create table numbers (n int primary key)")
            digits = "(" + " union all ".join(f"select {n} as n" for n in range(10)) + ")"
            do(connection, NUMBERS.format(digits=digits))
            do(connection, CREATE_TABLE.format(table="w"))
            do(connection, FILL.format(table="w", count=self.base_row_count))
            do(connection, CHANGES)
            do(connection, SINGLE)

    def change(self, url: str) -> Made:
        """Commit the changes, in binlog files of their own."""
        with connect(url, application_name="bench") as connection:
            do(connection, f"use {DATABASE}")
            do(connection, "flush binary logs")
            begin = read_status(connection)
            first, per = self.base_row_count + 1, self.rows_per_transaction
            count = self.change_count // per
            if per == 1:
                do(connection, f"call single_changes({first}, {count})")
            else:
                inserts, updates = per // 2, per * 35 // 100
                deletes = per - inserts - updates
                do(connection, f"call changes({first}, {count}, {inserts}, {updates}, {deletes})")
            end = read_status(connection).position
        return Made(begin=begin.position, end=end, gtids=begin.gtids, row_count=count * per)

    def restore(self, url: str) -> None:
        """Put the base rows back, out of the binlog."""
        with connect(url, application_name="bench") as connection:
            do(connection, "set session sql_log_bin = 0")
            do(connection, f"use {DATABASE}")
            do(connection, "drop table if exists w")
            do(connection, CREATE_TABLE.format(table="w"))
            do(connection, FILL.format(table="w", count=self.base_row_count))


def do(connection: Connection, statement: str) -> None:
    """Run a statement of the set-up."""
    run(connection, statement, doing="making the workload")


def row_count(url: str) -> int:
    """Return the number of the table's rows."""
    with connect(url, application_name="bench") as connection:
        return int(value(connection, f"select count(*) from {DATABASE}.w", doing="counting"))
