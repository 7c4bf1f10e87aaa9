"""The notebooks of examples/ as committed: run in order, no traces of a machine, links that hold.

Not here: running them (`tests/servers/test_notebooks.py`).
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from harness.modules.facts import ROOT
from unit.test_tidy import MACHINE_PATHS, REGISTRIES

MODULE = runpy.run_path(str(ROOT / ".ci/notebooks.py"))
NOTEBOOKS = MODULE["notebooks"]()
CELLS = range(5, 11)
BYTES_MAX = 120_000
# Traces of the machine on which a notebook was run: folders, URLs with a password, tokens.
TRACES = re.compile(
    "|".join(
        (
            r"/(?:tmp|home|usr|var|opt|mnt|etc|Users)/",
            r"\w+://[^\s/@:]+:[^\s/@]+@",
            r"site-packages",
            r"(?:token|password|secret)\s*[=:]\s*\S",
            r"127\.0\.0\.1|localhost",
        )
    ),
    re.IGNORECASE,
)


def name_notebooks() -> list[Any]:
    """Return every notebook, with its name as id."""
    return [pytest.param(path, id=path.stem) for path in NOTEBOOKS]


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells with code."""
    return [cell for cell in MODULE["load"](path)["cells"] if cell["cell_type"] == "code"]


def test_the_page_lists_the_notebooks() -> None:
    """Each one, once, and no other."""
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([\w-]+\.ipynb)\)", page)) == [one.name for one in NOTEBOOKS]
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", name_notebooks())
def test_a_notebook_was_run_from_top_to_bottom(path: Path) -> None:
    """Cells are numbered in their order, none failed, and there are results."""
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {one["output_type"] for cell in cells for one in cell["outputs"]}
    assert kinds
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert {one["name"] for cell in cells for one in cell["outputs"] if "name" in one} <= {"stdout"}


@pytest.mark.parametrize("path", name_notebooks())
def test_a_notebook_is_short(path: Path) -> None:
    """A notebook has five to ten cells of code, and is a file that a reader's browser shows."""
    assert len(code_cells(path)) in CELLS
    assert path.stat().st_size < BYTES_MAX


@pytest.mark.parametrize("path", name_notebooks())
def test_a_notebook_has_no_trace_of_a_machine(path: Path) -> None:
    """Neither code nor results name its folders, addresses or passwords."""
    for number, cell in enumerate(MODULE["load"](path)["cells"], 1):
        texts = ["".join(cell["source"])]
        for one in cell.get("outputs", ()):
            data = one.get("data", {})
            shown = [data[kind] for kind in data if kind.startswith("text/")]
            texts += ["".join(value) for value in (one.get("text", ""), *shown)]
        for text in texts:
            for pattern in (TRACES, MACHINE_PATHS, REGISTRIES):
                assert not pattern.search(text), (number, pattern.search(text))


@pytest.mark.parametrize("path", name_notebooks())
def test_a_notebook_is_as_the_program_writes_it(path: Path) -> None:
    """`python .ci/notebooks.py` changes results and nothing else."""
    notebook = MODULE["load"](path)
    assert MODULE["clean"](notebook) == notebook
    assert MODULE["dump"](notebook) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", name_notebooks())
def test_links_of_a_notebook_lead_to_files(path: Path) -> None:
    """A relative link names a file that exists."""
    cells = MODULE["load"](path)["cells"]
    pages = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", "\n".join(pages))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_traces_are_found() -> None:
    """Folders, passwords and addresses are recognized."""
    for text in (
        "in /tmp/tmpabc/shop",
        "/home/me/shop",
        "postgresql://postgres:secret@host/shop",
        "token = abc",
        "listening on 127.0.0.1",
    ):
        assert TRACES.search(text), text
    assert not TRACES.search('pip install "penstock[spark]"; url = "${SHOP_URL}"')


def test_results_are_compared_without_what_changes() -> None:
    """Standard error, times and pictures are left out; lines of standard output are joined."""
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "a\n"},
        {"output_type": "stream", "name": "stderr", "text": "WARN Utils"},
        {"output_type": "stream", "name": "stdout", "text": ["b\n"]},
        {
            "output_type": "execute_result",
            "execution_count": 1,
            "data": {"text/plain": "3", "application/x": {}},
            "metadata": {"m": 1},
        },
    ]
    cell = {
        "cell_type": "code",
        "source": [],
        "id": "abc",
        "metadata": {"execution": 1},
        "outputs": outputs,
        "execution_count": 1,
    }
    notebook = MODULE["clean"]({"cells": [cell], "metadata": {"python": "3"}, "nbformat": 4})
    assert MODULE["texts"](notebook) == ["cell 1: a", "cell 1: b", "cell 1: 3"]
    assert "WARN" not in json.dumps(notebook)
    assert notebook["cells"][0]["metadata"] == {}
