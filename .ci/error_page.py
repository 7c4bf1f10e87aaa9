"""Write docs/errors.md from the docstrings of the error classes: `make error-page`."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "CF": "Configuration",
    "CT": "Control: running and stopping",
    "DC": "Decoding what the server sends",
    "HS": "This machine and its connections",
    "LD": "Loading",
    "LG": "The change log",
    "MY": "The MySQL and MariaDB source",
    "PG": "The PostgreSQL source",
    "PS": "Everywhere",
    "TG": "The target",
    "VF": "Verify",
    "WB": "The web interface",
}
RETRIES = {
    "backoff": "penstock tries again by itself, with growing pauses.",
    "operator": "Somebody has to do something first.",
    "never": "Trying again gives the same error.",
}
HEAD = """\
# Errors

Each condition has one code, one class and one message; the message names the place, what was
expected and what was found, and the line below it (`next:`) the command or the SQL to run. With
`--json` an error is an object with `code`, `error`, `hint` and the fields of its class.
`make error-page` writes this page from the docstrings in the source.
"""


def attribute(node: ast.ClassDef, name: str) -> str | None:
    """The text that a class body assigns to name, if it does."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name) and target.id == name:
            value = statement.value
            return value.value if isinstance(value, ast.Constant) else None
    return None


def main() -> None:
    """Gather the classes that set a code, and write the page."""
    classes: dict[str, ast.ClassDef] = {}
    every: list[ast.ClassDef] = []  # a name may be used in two modules
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
                every.append(node)

    def inherited(node: ast.ClassDef, name: str, default: str) -> str:
        own = attribute(node, name)
        if own is not None:
            return own
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                return inherited(classes[base.id], name, default)
        return default

    coded = sorted(
        ((code, node) for node in every if (code := attribute(node, "code"))),
        key=lambda pair: (pair[0], pair[1].name),
    )
    lines, room = [HEAD], ""
    for code, node in coded:
        if code[:2] != room:
            room = code[:2]
            lines.append(f"# {ROOMS.get(room, room)}\n")
        text = ast.get_docstring(node) or ""
        retry = RETRIES[inherited(node, "retry", "operator")]
        lines.append(f"## {code} {node.name}\n\n{text}\n\n*{retry}*\n")
    (ROOT / "docs" / "errors.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
