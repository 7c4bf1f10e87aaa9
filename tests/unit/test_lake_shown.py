"""Facts of a lake's tables on `penstock status` and its web page; no command is run."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from harness.pipelines.readings import HOSTILE, ORDERS, status
from penstock.control.status.show import show_lake, show_status
from penstock.engines.lake.progress import read_table_facts
from penstock.engines.lake.state import LakeState, LogState
from penstock.engines.lake.storage import Folder
from penstock.ports.lake import TableFacts


def print_out(print_it: object, *given: object) -> str:
    """Return what a function prints."""
    text = io.StringIO()
    print_it(*given, Console(file=text, width=150))
    return text.getvalue()


def test_status_shows_the_tables_of_a_lake() -> None:
    """Print files, rows without the deleted ones, size and missing rows; and the same as JSON."""
    text = print_out(show_status, status())
    assert "dead rows" in text
    line = next(line for line in text.splitlines() if line.startswith(str(ORDERS)))
    assert [word for word in line.split() if word != "0"][1:4] == ["3", "960", "40"]
    found = status().as_dict()["lake"]
    assert found[str(ORDERS)]["rows"] == 1000
    assert found[str(HOSTILE)]["missing"] == 2
    assert "no table yet" in print_out(show_lake, {})


def test_the_facts_are_read_without_java(tmp_path: Path) -> None:
    """Read what a loader wrote; the missing rows are those of its newest batch."""
    url = f"delta+file://{tmp_path}"
    assert read_table_facts(url) == {}
    state = LakeState(Folder(f"{tmp_path}/_penstock"))
    state.write_tables({"public.a": TableFacts(files=2, rows=5), "public.b": TableFacts()})
    state.write_log(LogState(log_id="x", missing={"public.b": 3}))
    assert read_table_facts(url) == {
        "public.a": TableFacts(files=2, rows=5),
        "public.b": TableFacts(missing=3),
    }
