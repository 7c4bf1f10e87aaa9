"""Write the notebooks of examples/ again: `python .ci/notebooks.py [--check] [NAME...]`.

Each notebook is run from top to bottom in a kernel of this Python, in its folder, as Jupyter does.
Its results are written into it, without what is different at each run: times of cells, versions,
and standard error, where Spark writes. With --check nothing is written: the results that are text
are compared with those of the file, and a difference is an error.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples"
TIMEOUT_S = 600  # of a cell, on a busy machine
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SHOWN = ("image/png", "text/html", "text/plain")

Notebook = dict[str, Any]


def notebooks() -> list[Path]:
    """Return the notebooks by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def load(path: Path) -> Notebook:
    """Return a notebook as its file has it."""
    found: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return found


def dump(notebook: Notebook) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def execute(path: Path) -> Notebook:
    """Run a notebook and return it with its results. Raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=resources
    ).execute()
    found: Notebook = json.loads(nbformat.writes(notebook))
    return clean(found)


def clean(notebook: Notebook) -> Notebook:
    """Return a notebook without what is different at each run."""
    cells = [_clean_cell(cell, number) for number, cell in enumerate(notebook["cells"], 1)]
    return {**notebook, "cells": cells, "metadata": KERNEL}


def _clean_cell(cell: dict[str, Any], number: int) -> dict[str, Any]:
    cleaned = {**cell, "id": f"cell-{number}", "metadata": {}}
    if cell["cell_type"] == "code":
        cleaned["outputs"] = list(_clean_outputs(cell["outputs"]))
    return cleaned


def _clean_outputs(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outputs: all lines of standard output in one, and figures and values."""
    lines = "".join(_text(one["text"]) for one in outputs if one.get("name") == "stdout")
    found = []
    if lines:
        split = lines.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": split})
    for one in outputs:
        if one["output_type"] != "stream":
            data = {kind: value for kind, value in one["data"].items() if kind in SHOWN}
            found.append({**one, "data": data, "metadata": {}})
    return found


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def texts(notebook: Notebook) -> list[str]:
    """Return the results that are text, line by line, each with the number of its cell."""
    found = []
    for number, cell in enumerate(notebook["cells"], 1):
        for one in cell.get("outputs", ()):
            text = one["text"] if one["output_type"] == "stream" else one["data"]["text/plain"]
            found += [f"cell {number}: {line}" for line in _text(text).splitlines()]
    return found


def main(arguments: list[str]) -> int:
    """Run the named notebooks, or all; return the exit code."""
    is_check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    wrong = 0
    for path in notebooks():
        if names and path.stem not in names:
            continue
        fresh = execute(path)
        if not is_check:
            path.write_text(dump(fresh), encoding="utf-8")
            continue
        lines = list(difflib.unified_diff(texts(load(path)), texts(fresh), "file", "run", n=0))
        sys.stdout.writelines(f"{path.name}: {line.rstrip()}\n" for line in lines)
        wrong += bool(lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
