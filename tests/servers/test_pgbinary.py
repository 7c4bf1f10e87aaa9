"""Values in binary form, compared with the results of the server's own send functions."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from harness.servers.postgres_types import SETUP, has_xml, values_for
from penstock.codec.columns import arrow_type
from penstock.codec.postgres.pgbinary import binary_form
from penstock.codec.postgres.pgtext import Unfit, cell_reader
from penstock.codec.postgres.pgtypes import neutral_type
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS
from penstock.model import Column
from plugins.postgres import Server

DESCRIBED = """
    select a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod), t.typsend::text,
           case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) else '' end,
           case when t.typtype = 'd' then t.typbasetype else a.atttypid end,
           case when t.typtype = 'd' then t.typtypmod else a.atttypmod end
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = 'public.one'::regclass and a.attname = 'v'
"""
# Types that are sent in binary form if the log has the values in their own form.
HAVE = {
    *("boolean", "smallint", "integer", "bigint", "oid", "xid", "cid", "xid8", "real"),
    *("double precision", "numeric", "numeric(12,2)", "numeric(38,0)", "text", "varchar(5)"),
    *("char(5)", "name", "bytea", "date", "time", "timestamp", "timestamptz", "uuid", "json"),
    "jsonb",
}


@pytest.fixture
def connection(postgres: Server) -> Iterator[psycopg.Connection]:
    """Connection to a database with user types."""
    url = postgres.make_database("binary")
    try:
        with psycopg.connect(url, autocommit=True) as found:
            found.execute(SETUP)
            found.prepare_threshold = None
            for name, value in EXACT_TEXT_SETTINGS.items():
                found.execute(f"set {name} = '{value}'")  # type: ignore[arg-type]
            yield found
    finally:
        postgres.drop_database(url)


def test_values_are_those_of_the_send_functions(
    connection: psycopg.Connection, postgres: Server
) -> None:
    """Every type and value with a binary form here is equal; a user type has none."""
    compared: set[str] = set()
    for kind, texts in values_for(postgres.version, set(), with_xml=has_xml(connection)).items():
        connection.execute(f"create table public.one (v {kind})")  # type: ignore[arg-type]
        described = connection.execute(DESCRIBED).fetchone()
        assert described is not None
        oid, typmod, printed, send, base, base_oid, base_typmod = described
        column = Column(
            name="v",
            source_type=printed,
            neutral=neutral_type(base_oid, base_typmod),
            base_type=base,
            type_oid=oid,
            typmod=typmod,
        )
        forms = [(one, form) for one in (column, column.as_text()) if (form := binary_form(one))]
        assert not forms or base or "." not in printed, "no client knows the form of a user's type"
        query = f"select format('%s', v), {send}(v) from public.one"
        for text in texts if forms else ():
            connection.execute("truncate public.one")
            connection.execute("insert into public.one values (%s)", (text,))
            found = connection.execute(query).fetchone()  # type: ignore[arg-type]
            assert found is not None
            shown, wanted = found
            for one, form in forms:
                try:
                    value = cell_reader(one)(shown.encode())
                except Unfit:  # the log would keep it as text
                    continue
                values = pa.array([value, None], arrow_type(one.neutral))
                assert form(values).to_pylist() == [wanted, None], (kind, text)
                compared.add(kind)
        connection.execute("drop table public.one")
    assert compared >= HAVE, HAVE - compared
