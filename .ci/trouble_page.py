"""Fill the tables of docs/troubleshooting.md from docs/errors.md: `make error-page`.

The page has comments such as `<!-- errors: PG50 PG51 -->`. Below each is a table of these errors:
the code with its link, the first sentence of its text, and the hint to try first.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
ERRORS = ROOT / "docs" / "errors.md"
HEAD = "| error | what happened | do this first |\n|---|---|---|\n"
MARKED = re.compile(r"<!-- errors: ([A-Z0-9 \n]+) -->\n(?:\|.*\n)*")


class Entry(NamedTuple):
    """One error of docs/errors.md."""

    code: str
    name: str
    text: str
    hint: str


def entries() -> dict[str, Entry]:
    """Return the errors of the page by code."""
    found = {}
    for part in ERRORS.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        code, name = title.split()
        paragraphs = [one for one in body.split("\n\n") if one.strip()]
        hints = re.findall(r"^- (.*)$", body, re.MULTILINE)
        found[code] = Entry(code, name, _first_sentence(paragraphs[0]), hints[0] if hints else "")
    return found


def _first_sentence(text: str) -> str:
    text = re.sub(r"^Error: (.)", lambda found: found[1].upper(), " ".join(text.split()))
    return re.split(r"(?<=\.)\s+(?=[A-Z`]|fields)", text)[0]


def row(entry: Entry) -> str:
    """Return an error's line of a table."""
    link = f"[{entry.code}](errors.md#{entry.code.lower()}-{entry.name.lower()})"
    cells = (link, entry.text, entry.hint)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def fill(page: str) -> str:
    """Return the page with all tables written again. Raises KeyError for an unknown code."""
    known = entries()

    def table(match: re.Match[str]) -> str:
        lines = "".join(row(known[code]) for code in match[1].split())
        return f"<!-- errors: {match[1]} -->\n{HEAD}{lines}"

    return MARKED.sub(table, page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
