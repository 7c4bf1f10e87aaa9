"""Facts of modules, on which the tests of conventions rest: none is missed, none is out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.modules import facts as facts_module
from harness.modules.facts import Facts, module_facts, read_facts

MODULE = '''"""Say nothing of MySQL."""
import penstock.cli
from ..model import rows as lines, keys


class Failed(Base):
    """Failure."""
    code: ClassVar[str] = "ZZ01"

    def read(self):
        try:
            pass
        except OSError:
            def inner():
                print("penstock.load.worker")

    @override
    def write(self): """Write."""


def outer():
    match keys:
        case [_]:
            for one in lines:
                import json
            else:
                from . import tables
'''


def test_each_fact_is_read() -> None:
    """Statements in any block are found, texts and calls anywhere."""
    found = read_facts(MODULE)
    functions = {(one.line, one.name, one.lines) for one in found.functions}
    assert functions == {(10, "read", 6), (14, "inner", 2), (18, "write", 1), (21, "outer", 7)}
    assert {one.name for one in found.functions if one.is_overriding} == {"read"}
    assert {one.decorators for one in found.functions} == {"", "override"}
    assert sorted(found.docstrings) == [
        (1, "Say nothing of MySQL."),
        (6, "Failure."),
        (18, "Write."),
    ]
    imports = {(one.line, one.source, one.names, one.level) for one in found.imports}
    assert imports == {
        (2, None, ("penstock.cli",), 0),
        (3, "model", ("rows", "keys"), 2),
        (25, None, ("json",), 0),
        (27, "", ("tables",), 1),
    }
    assert [(one.line, one.owner, one.name) for one in found.silent] == [(10, "Failed", "read")]
    assert found.codes == [("Failed", "ZZ01")]
    assert (found.prints, found.dotted) == ([15], ["penstock.load.worker"])
    assert not found.names_engine, "docstrings are free"


@pytest.mark.parametrize("line", ["mysql = 1", "x.mariadb", "f(psycopg=1)", "x = 'Postgres'"])
def test_an_engine_is_found_in_any_name_and_text(line: str) -> None:
    """Names, attributes, arguments and texts count."""
    assert read_facts(f"{MODULE}\n{line}\n").names_engine


def test_a_changed_module_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are kept by text; a cache that cannot be read is written again."""
    monkeypatch.setattr(facts_module, "ROOT", tmp_path)
    monkeypatch.setattr(facts_module, "CACHE", tmp_path / "build" / "facts")
    module = tmp_path / "src" / "a.py"
    module.parent.mkdir()

    def read() -> Facts:
        module_facts.cache_clear()
        return module_facts()[Path("src/a.py")]

    try:
        module.write_text("print(1)\n")
        assert read().prints == read().prints == [1]
        module.write_text("\nprint(1)\n")
        assert read().prints == [2]
        (tmp_path / "build" / "facts").write_bytes(b"broken")
        assert read().prints == [2]
        monkeypatch.setattr(facts_module, "read_facts", None)
        assert read().prints == [2], "it was kept"
    finally:
        module_facts.cache_clear()
