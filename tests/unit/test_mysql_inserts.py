"""Lines of LOAD DATA as INSERT statements."""

from __future__ import annotations

from penstock.engines.mysql.target.chunk import insert_statements
from penstock.sql.read_plan import AS_IS

HEAD = "insert into t (a, b)"


def statements(
    *blocks: bytes, templates: tuple[str, ...] = (AS_IS, AS_IS), room: int = 10_000
) -> list[bytes]:
    """Return the statements without their common beginning."""
    made = list(insert_statements(HEAD, templates, blocks, bytes_max=room))
    began = f"{HEAD} values ".encode()
    assert all(one.startswith(began) for one in made)
    return [one.removeprefix(began) for one in made]


def test_quotes_nulls_and_escapes() -> None:
    """Text inside a value that looks like a NULL or an end is not one."""
    assert statements(b"1\t\\N\n\\N\tit's\n") == [
        b"(_binary'1',NULL),(NULL,_binary'it\\'s')",
    ]
    tricky = b"_binary'\\\\N'\t\\\\N\n"
    assert statements(tricky) == [b"(_binary'_binary\\'\\\\N\\'',_binary'\\\\N')"]
    assert statements(b"\\t\\n\\0\t\n") == [b"(_binary'\\t\\n\\0',_binary'')"]


def test_what_is_computed() -> None:
    """Templates enclose the value as text; a NULL stays a NULL in them."""
    templates = ("cast({} as unsigned)", "trim({})")
    assert statements(b"5\tx'\n\\N\t\n", templates=templates) == [
        b"(cast(convert(_binary'5' using utf8mb4) as unsigned),"
        b"trim(convert(_binary'x\\'' using utf8mb4))),"
        b"(cast(convert(NULL using utf8mb4) as unsigned),trim(convert(_binary'' using utf8mb4)))"
    ]


def test_statements_are_no_longer_than_they_may_be() -> None:
    """A longer row has its own statement; every row is there once, in order."""
    lines = [b"%d\t%s\n" % (number, b"x" * (number % 50)) for number in range(200)]
    lines.insert(7, b"9999\t" + b"y" * 900 + b"\n")
    made = statements(b"".join(lines[:90]), b"", b"".join(lines[90:]), room=500)
    assert [len(one) for one in made if len(one) > 500] == [len(b"(_binary'9999',_binary'')") + 900]
    together = b",".join(made).replace(b"(_binary'", b"").replace(b"',_binary'", b"\t")
    assert together.replace(b"')", b"").split(b",") == [line[:-1] for line in lines]
