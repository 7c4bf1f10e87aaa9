"""Conditions that have a class of their own: a test raises each, and doctor knows it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import penstock
from harness.servers.checks import every_check
from penstock.control.doctor.doctor import checks_of_errors, not_found_before
from penstock.model import PenstockError
from penstock.ports.checks import ITSELF

TESTS = Path(__file__).parents[1]
UNMET = {
    "CT31": "a standby below 16",
    "CT32": "replay that does not pause in a minute",
    "CT38": "another server answers while the lag is asked for",
    "CT80": "a role that may not remove what it has made",
    "LD47": "tables that are rewritten ten times while they are planned",
    "LD50": "a server that breaks MySQL's protocol in the middle of a result",
    "MY90": "tables that are altered twenty times while they are read",
    "PG67": "a role that loses its right to the publication while it runs",
    "WB05": "a web server that does not come up on a port that is free",
}
"""Codes that no test raises, and why: races and faults that cannot be produced on demand."""


def error_kinds() -> list[type[PenstockError]]:
    """Return every error class of the package that has a code of its own."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = []
    waiting = [PenstockError]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("penstock.") and "code" in kind.__dict__:
                found.append(kind)
    return found


def test_every_error_class_is_met_by_a_test() -> None:
    """A test has its code or its name; a name of two classes counts beside its module's name."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")]
    files = [set(re.findall(r"\w+", text)) for text in texts if "UNMET = {" not in text]
    kinds = {(k.code, k.__name__, k.__module__.rpartition(".")[2]) for k in error_kinds()}
    count = Counter(name for _, name, _ in kinds)
    unmet = set()
    for code, name, module in kinds:
        named = {name, module} if count[name] > 1 else {name}
        if not any(code in words or named <= words for words in files):
            unmet.add(code)
    assert sorted(unmet - UNMET.keys()) == [], "write a test that raises it"
    assert sorted(UNMET.keys() - unmet) == [], "a test meets it now: take it out"


def test_every_refusal_at_start_has_a_check() -> None:
    """Each error that needs operator action is found by doctor, or the list says why it is not."""
    wanted = {kind.code for kind in error_kinds() if kind.retry == "operator"}
    found = checks_of_errors()
    reasons = [prefix for text in not_found_before() for prefix in text.split()]
    unsaid = {code for code in wanted - found.keys() if not code.startswith(tuple(reasons))}
    assert sorted(unsaid) == [], "give doctor a check, or say why it cannot know"
    assert sorted(found.keys() - wanted) == [], "there is no such refusal"
    assert sorted(found.keys() & set(reasons)) == [], "it is found, or it is not"
    assert sorted(r for r in reasons if not any(c.startswith(r) for c in wanted)) == []
    checks = {check.code for check in every_check()} | {ITSELF}
    assert {code for codes in found.values() for code in codes} - checks == set()
