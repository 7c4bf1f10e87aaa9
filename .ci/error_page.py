"""Write docs/errors.md from the error classes and their hints: `make error-page`.

What is to be done is what the code says where it raises the error; names of variables in capitals
stand for what the message fills in.
"""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "CF": "Configuration",
    "CN": "Consumers",
    "CT": "Control: running and stopping",
    "DC": "Decoding what the server sends",
    "FX": "FlexCDC: changelog tables and plugins",
    "MG": "Merging logs",
    "ST": "Staging in a database",
    "SV": "Serving the log",
    "BA": "The base of the log",
    "IG": "A node's directory of Apache Ignite",
    "HS": "This machine and its connections",
    "LD": "Loading",
    "LG": "The change log",
    "MY": "The MySQL and MariaDB source",
    "PG": "The PostgreSQL source",
    "PS": "Everywhere",
    "SL": "The progress file of a pipeline without target",
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
Below each stands what penstock says is to be done, with words in capitals for names that it fills
in. `make error-page` writes this page from the source.
"""
HINTS_MAX = 8  # of one class: those that follow are variants
# Of classes whose hint is made elsewhere: by a server, by the caller, or not at all.
DEFECT = "Start the same command again. If it comes again at the same place, please report it."
MORE = {
    "BinlogBroken": DEFECT,
    "ConfigUrlInvalid": "Write it like postgresql://user:${PASSWORD}@host:5432/database.",
    "ConfigPatternInvalid": 'Write schema.table, with * and ? for any text: "public.*".',
    "CopyConnectionLost": "Nothing: the chunk is copied again once the server answers.",
    "FaultInjected": "Unset PENSTOCK_FAULT: it is for tests.",
    "FileExists": "Run `penstock log check`; move the file away that does not belong there.",
    "FileMissing": "Run `penstock log check`; put the file back that it names.",
    "FrameInvalid": "Run `penstock log check`: it names the file; put it back from a copy.",
    "LogLocked": "Stop the other process, or give this pipeline a directory of its own.",
    "PacketInvalid": "Check host and port: what answers there is no MySQL or MariaDB server.",
    "PenstockError": DEFECT,
    "ProcessNotStarted": "Look at the system's limits (`ulimit -u`, memory), and start again.",
    "ResendFailed": "Do what the extractor says, and give the same command again.",
    "SchemaChangeNotApplied": "Alter the target's table by hand, then `penstock table resync`.",
    "SessionProtocolBroken": DEFECT,
    "StateOfOtherLog": "Each state has its own: the message names the file and the next command.",
    "SparkStartFailed": "Look at spark.log in the run directory; `penstock doctor` checks Java.",
    "SpillBroken": DEFECT,
    "TableWithoutColumns": "Give it a column, or leave it out: `penstock table remove`.",
    "TextBroken": DEFECT,
    "TransactionOpen": DEFECT,
    "VerifyStopped": "Run `penstock verify` again.",
    "WireError": "Check host and port: what answers there is no PostgreSQL server.",
}


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


def texts(node: ast.expr | None, constants: dict[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression may be, as far as the source alone tells."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [""]
        for value in node.values:
            inner = value.value if isinstance(value, ast.FormattedValue) else value
            some = list(texts(inner, constants))
            if not some and isinstance(value, ast.FormattedValue):
                some = [placeholder(value.value)]
            parts = [part + one for part in parts for one in some[:3]]
        yield from parts
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, constants)
        yield from texts(node.orelse, constants)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = list(texts(node.right, constants))
        yield from (a + b for a in texts(node.left, constants) for b in right)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from texts(value, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from texts(constants[node.id], constants)
    elif isinstance(node, ast.Call):
        name = called(node)
        if name in constants:  # a function of one return
            yield from texts(constants[name], constants)


def placeholder(node: ast.expr) -> str:
    """A name in capitals for what is filled in."""
    found = re.findall(r"[A-Za-z_]+", ast.unparse(node))
    words = [word for word in found if word not in ("self", "str", "quoted", "join", "literal")]
    return (words[-1] if words else "value").strip("_").upper()


def called(node: ast.Call) -> str:
    """The name of what is called."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def names_of(path: Path, tree: ast.Module) -> dict[str, ast.expr]:
    """What names stand for in a module: its texts, and functions that only return one."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.FunctionDef):
            last = node.body[-1]
            if isinstance(last, ast.Return) and last.value is not None:
                found.setdefault(node.name, last.value)
    texts = {k: ast.Constant(v) for k, v in vars(module).items() if isinstance(v, str)}
    return found | texts


def hints_of(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """The hints of each class, in the order in which the source has them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        names = names_of(path, tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            raised = called(node)
            for keyword in node.keywords:
                if keyword.arg == "error" and isinstance(keyword.value, ast.Name):
                    raised = keyword.value.id  # a check that raises the class it is given
            for keyword in node.keywords:
                if keyword.arg == "hint":
                    found[raised] += texts(keyword.value, names)
            three = called(node) == "_condition" and len(node.args) == 3
            if three and isinstance(node.args[1], ast.Name):
                found[node.args[1].id] += texts(node.args[2], names)
    for name, hint in MORE.items():
        found[name].append(hint)
    return {
        name: list(dict.fromkeys(" ".join(hint.split()) for hint in hints if hint.strip()))
        for name, hints in found.items()
    }


def page() -> str:
    """Return the page: the classes that set a code, with their hints."""
    classes: dict[str, ast.ClassDef] = {}
    every: list[ast.ClassDef] = []  # a name may be used in two modules
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
                every.append(node)
    hints = hints_of(trees)

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
    lines, area = [HEAD], ""
    for code, node in coded:
        if code[:2] != area:
            area = code[:2]
            lines.append(f"# {AREAS.get(area, area)}\n")
        text = ast.get_docstring(node) or ""
        retry = RETRIES[inherited(node, "retry", "operator")]
        lines.append(f"## {code} {node.name}\n\n{text}\n\n*{retry}*\n")
        lines += [f"- {hint.replace('<', '&lt;')}" for hint in hints.get(node.name, [])[:HINTS_MAX]]
        lines += [""] if node.name in hints else []
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    (ROOT / "docs" / "errors.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
