"""Random queries, in the subset of SQL that the served catalogue answers."""

from __future__ import annotations

from random import Random

SCHEMAS = "('public'::regnamespace, 's2'::regnamespace)"
SOURCES = {
    "c": (
        "(select oid, relname, relkind, relnatts, relhasindex, relreplident from pg_class"
        f" where relkind = 'r' and relnamespace in {SCHEMAS})",
        {
            "relname": "text",
            "relkind": "text",
            "relnatts": "int",
            "relhasindex": "bool",
            "relreplident": "text",
            "oid": "oid",
        },
    ),
    "a": (
        "(select attrelid, attname, atttypid, attnum, attlen, attnotnull from pg_attribute where"
        f" attnum > 0 and attrelid in (select oid from pg_class where relnamespace in {SCHEMAS}"
        " and relkind = 'r'))",
        {
            "attname": "text",
            "attnum": "int",
            "attlen": "int",
            "attnotnull": "bool",
            "attrelid": "oid",
            "atttypid": "oid",
        },
    ),
    "t": (
        "(select oid, typname, typlen, typcategory, typelem, typbyval from pg_type"
        " where oid between 16 and 60 or oid between 1000 and 1030)",
        {
            "oid": "oid",
            "typname": "text",
            "typlen": "int",
            "typcategory": "text",
            "typelem": "oid",
            "typbyval": "bool",
        },
    ),
    "i": (
        "(select indrelid, indkey, indnatts, indisprimary from pg_index where indrelid in"
        f" (select oid from pg_class where relnamespace in {SCHEMAS}))",
        {"indrelid": "oid", "indkey": "array", "indnatts": "int", "indisprimary": "bool"},
    ),
    "v": (
        "(values (1, 'a', true, null::int, '{1,2}'::int[]), (2, 'b_', false, 3, '{}'),"
        " (null, null, null, 4, null), (-7, 'a%b', null, 0, '{3,null,-7}'))",
        {"n": "int", "s": "text", "b": "bool", "m": "int", "r": "array"},
    ),
    "g": ("generate_series(1, 4)", {"g": "int"}),
    "n": (
        "(select p.pubname, x.schemaname, x.tablename, x.attnames from pg_publication p left join"
        " pg_publication_tables x on x.pubname = p.pubname)",
        {"pubname": "text", "schemaname": "text", "tablename": "text", "attnames": "array"},
    ),
}
INTS = ("0", "1", "2", "-1", "3", "7", "32767", "null::int")
TEXTS = ("'a'", "'r'", "'id'", "''", "'t%'", "'^[a-t]'", "'_d'", "null::text", "'d'")


class Queries:
    """A maker of queries from one random source."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seen: dict[str, list[str]] = {}

    def query(self) -> str:
        """Return a SELECT, in an order that only its rows decide."""
        one, other = self._random.sample(sorted(SOURCES), 2)
        kind = self._random.choice(("one", "inner", "left", "cross", "right", "lateral"))
        self._seen = {}
        source = self._source(one)
        if kind != "one":
            lateral = kind == "lateral"
            before = self._columns("array") if lateral else []
            if lateral and before:
                source += f", lateral unnest({self._random.choice(before)}) as w(z)"
                if "attnames" not in source:
                    self._see("w", {"z": "int"})
            elif kind == "cross" or lateral:
                source += f", {self._source(other)}"
            else:
                right = self._source(other)
                condition = self.boolean(1)
                source += f" {kind} join {right} on {condition}"
        return self._select(source)

    def _select(self, source: str) -> str:
        where = f" where {self.boolean(2)}" if self._random.random() < 0.7 else ""
        if self._random.random() < 0.3:
            keys = [self._value(1) for _ in range(self._random.randint(0, 2))]
            values = [self._aggregate() for _ in range(self._random.randint(1, 2))]
            items = [*keys, *values]
            group = f" group by {', '.join(map(str, range(1, len(keys) + 1)))}" if keys else ""
            if group and self._random.random() < 0.3:
                group += f" having count(*) > {self._random.randint(0, 2)}"
        else:
            items = [self._value(3) for _ in range(self._random.randint(1, 3))]
            group = ""
        distinct = "distinct " if self._random.random() < 0.2 else ""
        text = f"select {distinct}{', '.join(items)} from {source}{where}{group}"
        if self._random.random() < 0.15:
            first = self._random.choice(("union", "union all", "except", "intersect"))
            text = f"{text} {first} select {', '.join(items)} from {source}{group}"
        return text

    def _source(self, name: str) -> str:
        sql, columns = SOURCES[name]
        self._see(name, columns)
        if sql.startswith("generate"):
            return f"{sql} as {name}"
        return f"{sql} as {name}({', '.join(columns)})" if name == "v" else f"{sql} as {name}"

    def _see(self, name: str, columns: dict[str, str]) -> None:
        for column, kind in columns.items():
            self._seen.setdefault(kind, []).append(f"{name}.{column}")

    def _columns(self, kind: str) -> list[str]:
        return self._seen.get(kind, [])

    def _value(self, depth: int) -> str:
        kind = self._random.choice(("int", "text", "boolean", "text", "oid", "array"))
        if kind == "oid" and self._columns("oid"):
            return self._random.choice(self._columns("oid"))
        if kind == "array" and self._columns("array"):
            return self._random.choice(self._columns("array"))
        return {"int": self.int, "text": self.text, "boolean": self.boolean}.get(kind, self.int)(
            depth
        )

    def _aggregate(self) -> str:
        kind = self._random.randrange(8)
        if kind == 0:
            return "count(*)"
        if kind == 1:
            return f"count(distinct {self.text(1)})"
        if kind == 2:
            return f"sum({self.int(1)})"
        if kind == 3:
            return f"max({self.int(1)}) filter (where {self.boolean(1)})"
        if kind == 4:
            return f"min({self.text(1)})"
        if kind == 5:
            value = self.text(1)
            return f"string_agg({value}, ',' order by {value} desc)"
        if kind == 6:
            value = self.int(1)
            return f"array_agg({value} order by {value})"
        return f"bool_or({self.boolean(1)})"

    def int(self, depth: int) -> str:
        """Return an expression of integers."""
        if depth <= 0 or self._random.random() < 0.3:
            return self._random.choice([*INTS, *self._columns("int") * 3])
        kind = self._random.randrange(8)
        if kind == 0:
            return f"({self.int(depth - 1)} {self._random.choice('+-*')} {self.int(depth - 1)})"
        if kind == 1:
            return f"length({self.text(depth - 1)})"
        if kind == 2:
            return f"coalesce({self.int(depth - 1)}, {self.int(depth - 1)})"
        if kind == 3:
            return f"nullif({self.int(depth - 1)}, {self.int(depth - 1)})"
        if kind == 4 and self._columns("array"):
            array = self._random.choice(self._columns("array"))
            name = self._random.choice(("array_length", "array_upper", "array_lower"))
            return f"{name}({array}, 1)"
        if kind == 5:
            return f"(select count(*)::int from generate_series(1, 3) x where x > {self.int(0)})"
        if kind == 6:
            return f"greatest({self.int(depth - 1)}, {self.int(depth - 1)})"
        return self._case(self.int, depth)

    def text(self, depth: int) -> str:
        """Return an expression of texts."""
        if depth <= 0 or self._random.random() < 0.3:
            return self._random.choice([*TEXTS, *self._columns("text") * 3])
        kind = self._random.randrange(7)
        if kind == 0:
            return f"({self.text(depth - 1)} || {self.text(depth - 1)})"
        if kind == 1:
            return f"upper({self.text(depth - 1)})"
        if kind == 2:
            return f"({self.int(depth - 1)})::text"
        if kind == 3:
            return f"({self.boolean(depth - 1)})::text"
        if kind == 4:
            return f"substring({self.text(depth - 1)} from 1 for 2)"
        if kind == 5:
            return f"replace({self.text(depth - 1)}, 'a', {self.text(0)})"
        return self._case(self.text, depth)

    def boolean(self, depth: int) -> str:
        """Return a condition."""
        if depth <= 0:
            return self._random.choice([*self._columns("bool"), "true", "false", "null::bool"])
        kind = self._random.randrange(13)
        operator = self._random.choice(("=", "<>", "<", "<=", ">", ">="))
        one = depth - 1
        if kind == 0:
            return f"{self.int(one)} {operator} {self.int(one)}"
        if kind == 1:
            return f"{self.text(one)} {operator} {self.text(one)}"
        if kind == 2:
            return f"({self.boolean(one)} and {self.boolean(one)})"
        if kind == 3:
            return f"({self.boolean(one)} or {self.boolean(one)})"
        if kind == 4:
            return f"(not {self.boolean(one)})"
        if kind == 5:
            test = self._random.choice(("is null", "is not null"))
            return f"({self.text(one)} {test})"
        if kind == 6:
            test = self._random.choice(("is true", "is not true", "is false", "is not false"))
            return f"(({self.boolean(one)}) {test})"
        if kind == 7:
            return f"{self.int(one)} in ({self.int(0)}, {self.int(0)})"
        return self._other_boolean(kind, one, operator)

    def _other_boolean(self, kind: int, one: int, operator: str) -> str:
        if kind == 8:
            word = self._random.choice(("like", "not like", "ilike", "~", "!~", "~*"))
            return f"{self.text(one)} {word} {self._random.choice(TEXTS)}"
        if kind == 9:
            return f"{self.int(one)} between {self.int(0)} and {self.int(0)}"
        if kind == 10:
            word = self._random.choice(("is distinct from", "is not distinct from"))
            return f"({self.int(one)} {word} {self.int(one)})"
        if kind == 11 and any("attnames" not in c for c in self._columns("array")):
            array = next(c for c in self._columns("array") if "attnames" not in c)
            word = self._random.choice(("any", "all"))
            return f"({self.int(one)} {operator} {word} ({array}))"
        return self._subquery(one)

    def _subquery(self, depth: int) -> str:
        kind = self._random.randrange(3)
        if kind == 0:
            return f"exists (select 1 from generate_series(1, 3) y where y = {self.int(depth)})"
        word = "in" if kind == 1 else "not in"
        return f"{self.int(depth)} {word} (select y from generate_series(1, 3) y where y > 1)"

    def _case(self, make: object, depth: int) -> str:
        value = make(depth - 1)  # type: ignore[operator]
        other = make(depth - 1)  # type: ignore[operator]
        return f"case when {self.boolean(depth - 1)} then {value} else {other} end"
