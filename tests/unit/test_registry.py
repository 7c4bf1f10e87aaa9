"""Engines: found by the scheme of a URL; other schemes are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from penstock.ports import registry
from penstock.ports.registry import (
    Descriptor,
    EngineUnknown,
    PartMissing,
    engine_at,
    engines,
    part,
    types_at,
)

DESCRIPTOR = Descriptor(
    name="toy", shown="Toy", schemes={"toy": "postgresql"}, parts={"answer": f"{__name__}:ANSWER"}
)
ANSWER = 42


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that is installed beside penstock."""
    point = EntryPoint(name="toy", value=f"{__name__}:DESCRIPTOR", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda _: DESCRIPTOR)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group else [])
    engines.cache_clear()
    yield
    engines.cache_clear()


def test_each_scheme_has_its_engine() -> None:
    """PostgreSQL has two schemes; MySQL and MariaDB are one engine with two kinds of types."""
    found = {scheme: engine_at(f"{scheme}://u@h/d").name for scheme in registry.schemes()}
    assert found == {
        "postgresql": "postgres",
        "postgres": "postgres",
        "mysql": "mysql",
        "mariadb": "mysql",
        "oracle": "oracle",
        "sqlserver": "sqlserver",
        "sqlite": "sqlite",
        "cockroachdb": "cockroach",
        "delta+file": "delta",
        "delta+s3": "delta",
        "iceberg": "iceberg",
        "staged-postgresql": "feeds",
        "staged-mysql": "feeds",
        "staged-mariadb": "feeds",
        "ignite": "ignite",
        "merged-postgresql": "merged",
        "merged-mysql": "merged",
        "merged-mariadb": "merged",
        "yugabytedb": "yugabyte",
    }
    assert types_at("postgres://u@h/d") == "postgresql"
    assert types_at("MariaDB://u@h/d") == "mariadb"


@pytest.mark.parametrize("url", ["informix://u:secret@h/d", "mysqlx://u:secret@h/d", "h/d", ""])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    """The scheme is never taken for PostgreSQL, and the password is not shown."""
    expected = (
        r"postgresql://, mysql://, mariadb://, oracle://, sqlserver://, delta\+file://, iceberg:// "
        "or ignite://"
    )
    with pytest.raises(EngineUnknown, match=expected) as caught:
        engine_at(url)
    assert "secret" not in str(caught.value.as_dict())


def test_a_part_that_an_engine_does_not_have() -> None:
    """The error names it and the engine."""
    with pytest.raises(PartMissing, match="PostgreSQL has no part 'teleport'"):
        part("postgresql://u@h/d", "teleport")


@pytest.mark.usefixtures("with_toy")
def test_an_engine_from_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point names the engine, and its parts are imported on use."""
    here = SimpleNamespace(ANSWER=ANSWER)
    engines()  # ours are imported as they are
    monkeypatch.setattr(registry, "import_module", lambda _: here)
    assert part("toy://", "answer") == ANSWER
    assert types_at("toy://") == "postgresql"


def test_every_part_is_there() -> None:
    """Everything that a descriptor names can be imported."""
    for engine in engines():
        for name in engine.parts:
            assert engine.part(name) is not None


def test_a_descriptor_imports_nothing() -> None:
    """An engine that a pipeline does not use needs no driver."""
    program = (
        "import sys; from penstock.ports.registry import engines; engines(); "
        "print(*[name for name in ('psycopg', 'pymysql', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
