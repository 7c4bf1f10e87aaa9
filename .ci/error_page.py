"""Write docs/errors.md from the error classes and their hints: `make error-page`.

The next steps are the hints in the code that raises the error; names of variables in capitals
stand for the values that the message fills in.
"""

import ast
import gc
import importlib
import re
from collections import defaultdict, deque
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
    "KF": "Kafka",
    "HS": "This machine and its connections",
    "LD": "Loading",
    "LG": "The change log",
    "MY": "The MySQL and MariaDB source",
    "PG": "The PostgreSQL source",
    "PS": "Everywhere",
    "SK": "Reading the change log in Spark",
    "SL": "The progress file of a pipeline without target",
    "TG": "The target",
    "VF": "Verify",
    "WB": "The web interface",
}
RETRIES = {
    "backoff": "penstock retries automatically, with growing pauses.",
    "operator": "Needs operator action.",
    "never": "A retry gives the same error.",
}
HEAD = """\
# Errors

Each condition has one code, one class and one message. The message names the place, the expected
and the actual value; the line below it (`next:`) has the command or the SQL to run. With
`--json` an error is an object with `code`, `error`, `hint` and the fields of its class.
Below each error are penstock's hints. Words in capitals stand for values that it fills
in. `make error-page` writes this page from the source.
"""
HINTED = ("hint=", "_condition(")  # texts of modules that give hints: all others are skipped
BLOCKS = ("body", "cases", "handlers", "orelse", "finalbody")  # lists of statements in a statement
HINTS_MAX = 8  # per class: the rest are variants
# Hints that hold for every engine come first, then those of the engines that most readers have.
ENGINES = ("postgres", "mysql", "sqlserver", "oracle")
# Hints of classes whose hint comes from elsewhere (a server, the caller) or that have none.
DEFECT = (
    "Start the same command again. If the error occurs again at the same place, please report it."
)
MORE = {
    "BinlogBroken": DEFECT,
    "ConfigUrlInvalid": "Write it like postgresql://user:${PASSWORD}@host:5432/database.",
    "ConfigVariableMissing": "Set it and run again: export NAME=...; write $${ for a plain ${.",
    "ConfigPatternInvalid": 'Write schema.table, with * and ? for any text: "public.*".',
    "CheckpointCorrupt": "Put the file that the message names back from a copy.",
    "CopyConnectionLost": "Do nothing: the chunk is copied again once the server answers.",
    "DictionaryMismatch": "Load the table again. Read up to an ALTER TABLE before you run it.",
    "FaultInjected": "Unset PENSTOCK_FAULT, which is for tests.",
    "FileExists": "Run `penstock log check`; move the file that does not belong there.",
    "FileMissing": "Run `penstock log check`; restore the file that it names.",
    "FrameInvalid": "Run `penstock log check`, which names the file; restore it from a copy.",
    "LogLocked": "Stop the other process, or give this pipeline its own directory.",
    "PacketInvalid": "Check host and port: the server that answers there is not MySQL or MariaDB.",
    "PenstockError": DEFECT,
    "ProcessNotStarted": "Look at the system's limits (`ulimit -u`, memory), and start again.",
    "RedoBroken": "Select the row from V$LOGMNR_CONTENTS by SCN, XID and RS_ID, and report it.",
    "RedoUnlogged": "Run `ALTER TABLE OWNER.TABLE ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS`, then "
    "load the table again.",
    "RedoUnsupported": "Run `penstock table remove FILE OWNER.TABLE` to continue without the "
    "table.",
    "ResendFailed": "Follow the extractor's hint, then run the same command again.",
    "SchemaChangeNotApplied": "Alter the target's table by hand, then `penstock table resync`.",
    "SessionFormats": "Look for a logon trigger that sets NLS_DATE_FORMAT or NLS_TIMESTAMP_FORMAT.",
    "SessionProtocolBroken": DEFECT,
    "StateOfOtherLog": "Follow the message: it names the file and the next command.",
    "SparkStartFailed": "Look at spark.log in the run directory; `penstock doctor` checks Java.",
    "SpillBroken": DEFECT,
    "TableWithoutColumns": "Give it a column, or leave it out: `penstock table remove`.",
    "TextBroken": DEFECT,
    "TransactionOpen": DEFECT,
    "VerifyStopped": "Run `penstock verify` again.",
    "WireError": "Check host and port: the server that answers there is not PostgreSQL.",
}


def attribute(node: ast.ClassDef, name: str) -> str | None:
    """Return the text that a class body assigns to a name, or None."""
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


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and every statement in it, outer ones first."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for block in BLOCKS:
            waiting += getattr(node, block, ())


def texts(node: ast.expr | None, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the texts that an expression may have, as far as the source shows them."""
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
    """Return a name in capitals for a value that is filled in."""
    found = re.findall(r"[A-Za-z_]+", ast.unparse(node))
    words = [word for word in found if word not in ("self", "str", "quoted", "join", "literal")]
    return (words[-1] if words else "value").strip("_").upper()


def called(node: ast.Call) -> str:
    """Return the name of the called function."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def names_of(path: Path, tree: ast.Module) -> dict[str, ast.expr]:
    """Return the texts of a module by name, and functions that only return a text."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    found: dict[str, ast.expr] = {}
    for node in statements(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.FunctionDef):
            last = node.body[-1]
            if isinstance(last, ast.Return) and last.value is not None:
                found.setdefault(node.name, last.value)
    texts = {k: ast.Constant(v) for k, v in vars(module).items() if isinstance(v, str)}
    return found | texts


def engine_of(path: Path) -> str:
    """Return the engine whose folder has a file; empty if none has."""
    parts = path.parts
    return parts[parts.index("engines") + 1] if "engines" in parts else ""


def place_in_order(path: Path) -> int:
    """Return where a file's hints stand among those of the others."""
    engine = engine_of(path)
    if not engine:
        return -1
    return ENGINES.index(engine) if engine in ENGINES else len(ENGINES)


def hints_of(trees: dict[Path, ast.Module]) -> dict[str, dict[str, list[str]]]:
    """Return the hints of each class name by the engine that gives them, in the page's order."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, tree in sorted(trees.items(), key=lambda pair: place_in_order(pair[0])):
        names, engine = names_of(path, tree), engine_of(path)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            raised = {"StateFile": "CheckpointCorrupt"}.get(called(node), called(node))
            for keyword in node.keywords:
                if keyword.arg == "error" and isinstance(keyword.value, ast.Name):
                    raised = keyword.value.id  # a check that raises the class of its argument
            for keyword in node.keywords:
                if keyword.arg == "hint":
                    found[raised][engine] += texts(keyword.value, names)
            three = called(node) == "_condition" and len(node.args) == 3
            if three and isinstance(node.args[1], ast.Name):
                found[node.args[1].id][engine] += texts(node.args[2], names)
    return found


def choose_hints(
    by_engine: dict[str, list[str]], name: str, engine: str, others: set[str]
) -> list[str]:
    """Return the hints of one class: all, without those of another engine's class of its name.

    Args:
        by_engine: The hints of this class name.
        name: The class name.
        engine: The engine that has the class; empty if it is shared.
        others: Engines that have a class of the same name.
    """
    hints = [
        hint
        for given, some in by_engine.items()
        if given == engine or given not in others
        for hint in some
    ]
    if name in MORE:
        hints.append(MORE[name])
    return list(dict.fromkeys(" ".join(hint.split()) for hint in hints if hint.strip()))


def page() -> str:
    """Return the page: the classes that set a code, with their hints."""
    collects = gc.isenabled()
    gc.disable()  # it would look through each tree again and again
    try:
        return describe_errors()
    finally:
        if collects:
            gc.enable()


def describe_errors() -> str:
    """Return the page from the source as it is."""
    classes: dict[str, ast.ClassDef] = {}
    every: list[tuple[ast.ClassDef, str]] = []  # a name may be used in two modules
    sources = {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))}
    trees = {
        path: ast.parse(text)
        for path, text in sources.items()
        if any(word in text for word in ("class ", *HINTED))
    }
    for path, tree in trees.items():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
                every.append((node, engine_of(path)))
    hinted = (path for path in trees if any(word in sources[path] for word in HINTED))
    hints = hints_of({path: trees[path] for path in hinted})

    def inherited(node: ast.ClassDef, name: str, default: str) -> str:
        own = attribute(node, name)
        if own is not None:
            return own
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                return inherited(classes[base.id], name, default)
        return default

    coded = sorted(
        ((code, node, engine) for node, engine in every if (code := attribute(node, "code"))),
        key=lambda found: (found[0], found[1].name),
    )
    homes: dict[str, set[str]] = defaultdict(set)
    for _, node, engine in coded:
        homes[node.name].add(engine)
    lines, area = [HEAD], ""
    for code, node, engine in coded:
        if code[:2] != area:
            area = code[:2]
            lines.append(f"# {AREAS.get(area, area)}\n")
        text = ast.get_docstring(node) or ""
        retry = RETRIES[inherited(node, "retry", "operator")]
        lines.append(f"## {code} {node.name}\n\n{text}\n\n*{retry}*\n")
        chosen = choose_hints(hints[node.name], node.name, engine, homes[node.name] - {engine})
        lines += [f"- {hint.replace('<', '&lt;')}" for hint in chosen[:HINTS_MAX]]
        lines += [""] if chosen else []
    return "\n".join(lines)


def main() -> None:
    """Write the page; `.ci/trouble_page.py` then takes the usual errors from it."""
    (ROOT / "docs" / "errors.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
