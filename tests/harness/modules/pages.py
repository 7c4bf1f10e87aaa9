"""Pages of the documentation as tests read them: blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("console", "sh")


def section(page: Path, title: str) -> str:
    """Return a page's text below a heading of the second level. Fails if there is none."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2]
    assert text, f"{page.name} has no section {title}"
    return text.partition("\n## ")[0]


def blocks(text: str, kind: str) -> list[str]:
    """Return the code blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the commands of the text's shell blocks, without prompt, comment and output.

    A command goes on in the next line after a backslash, or until its quotes are closed.
    """
    found = []
    for kind in SHELLS:
        for block in blocks(text, kind):
            lines = block.splitlines()
            while lines:
                line = lines.pop(0)
                if kind == "console":
                    if not line.startswith("$ "):
                        continue
                    line = line.removeprefix("$ ")
                while lines and not _is_whole(line):
                    line = line.removesuffix("\\") + ("" if line.endswith("\\") else "\n")
                    line += lines.pop(0)
                if command := _without_comment(line):
                    found.append(command)
    return found


def _is_whole(line: str) -> bool:
    if line.endswith("\\"):
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def _without_comment(line: str) -> str:
    found = re.match(r"""((?:[^#'"\s]|\s+(?!\#)|(?<=\S)\#|'[^']*'|"[^"]*")*)""", line)
    return found[1].strip() if found else ""
