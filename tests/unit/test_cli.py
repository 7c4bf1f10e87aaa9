"""The command line: help for new users, one clear block per error, exit codes."""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from harness.pipelines.cli import call_cli, commands, groups
from harness.pipelines.pipeline import write_pipeline
from harness.servers.checks import every_check
from penstock import cli
from penstock.control.run import demo
from penstock.model import PenstockError

COMMANDS = ("run", "extract", "load", "status", "lag", "verify", "doctor", "demo")
LOG_COMMANDS = ("ls", "cat", "check")


def test_every_command_of_the_design_is_there() -> None:
    """The list has run, extract, load, status, lag, verify, doctor, demo and the log commands."""
    names = {name for name, _ in commands(cli.cli)}
    assert names >= {*COMMANDS, *(f"log {name}" for name in LOG_COMMANDS)}


def test_the_version_is_one_line_with_that_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock --version` prints what the report of a defect begins with."""
    code, out, _ = call_cli(capsys, "--version")
    assert code == 0
    assert out == f"penstock {penstock.__version__}, Python {platform.python_version()}\n"


@pytest.mark.parametrize("name", [name for name, _ in commands(cli.cli)])
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help says what it does, shows an example and the exit codes, and mentions --json."""
    code, out, _ = call_cli(capsys, *name.split(), "--help")
    assert code == 0
    for wanted in ("Example:", f"penstock {name}", "Exit codes:", "--json"):
        assert wanted in out, wanted
    if name in ("run", "extract", "load"):
        assert "What it changes" in out


@pytest.mark.parametrize(
    "name", [*(name for name, _ in commands(cli.cli)), *groups(cli.cli)], ids=lambda it: it or "-"
)
def test_help_fits_a_terminal_of_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is wider, and no sentence of a list of commands is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call_cli(capsys, *name.split(), "--help")
    assert code == 0
    lines = out.partition("\n\n")[2].splitlines()  # the usage, which comes first, has `...`
    assert [line for line in lines if len(line) > 80 or line.endswith("...")] == []


def test_an_error_is_one_block_on_standard_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The block has code, message and hint; standard output is empty, exit code 1, no traceback."""
    code, out, err = call_cli(capsys, "doctor", str(tmp_path / "nowhere.toml"))
    assert code == 1
    assert out == ""
    first, second = err.strip().splitlines()
    assert first.startswith("error CF01: cannot read")
    assert second.startswith("  next: ")


def test_an_error_is_one_object_with_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Programs read the same fields from an object."""
    path = write_pipeline(tmp_path, "postgresql://u@h/d", "informix://u@h/d")
    code, out, err = call_cli(capsys, "lag", str(path), "--json")
    assert (code, out) == (1, "")
    error = json.loads(err)
    assert error["code"] == "CF07"
    assert "postgresql://" in error["error"]
    assert error["hint"]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_demo_tells_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """The demo prints words, or an event with type and time."""

    def run_demo(_make_view: object, say: Callable[[str], None], **_: object) -> None:
        say("the customers are at work")
        raise PenstockError("enough")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    code, out, err = call_cli(capsys, "demo", *options)
    assert (code, "enough" in err) == (1, True), err
    if options:
        told = json.loads(out)
        assert (told["type"], told["text"]) == ("demo", "the customers are at work")
        assert told["time"]
    else:
        assert out == "the customers are at work\n"


@pytest.mark.parametrize(
    "arguments", [["run"], ["nonsense"], ["run", "a.toml", "--wrong"], ["log", "cat"]]
)
def test_wrong_usage_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Wrong usage ends with 2, with and without --json."""
    code, _, err = call_cli(capsys, *arguments)
    assert code == 2
    assert "Usage:" in err
    code, _, err = call_cli(capsys, *arguments, "--json")
    assert code == 2
    assert json.loads(err)["code"] == "usage"


def test_an_unexpected_exception_has_a_code_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The traceback appears only with --verbose, and the exit code is never 0."""

    def broken(file: Path) -> None:
        raise ZeroDivisionError("here")

    monkeypatch.setattr("penstock.control.pipeline.config.load_config", broken)
    code, _, err = call_cli(capsys, "lag", str(tmp_path / "x.toml"))
    assert code == 1
    assert err.startswith("error PS99: unexpected ZeroDivisionError: here")
    assert "Traceback" not in err
    code, _, err = call_cli(capsys, "lag", str(tmp_path / "x.toml"), "--verbose")
    assert code == 1
    assert "Traceback" in err


def test_a_reader_that_has_seen_enough_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`penstock log cat ... | head` ends without a message."""

    def broken(file: Path) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("penstock.control.pipeline.config.load_config", broken)
    monkeypatch.setattr("penstock.cli.entry.os.dup2", lambda *_: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    code, _, err = call_cli(capsys, "lag", str(tmp_path / "x.toml"))
    assert (code, err) == (1, "")


def error_classes() -> dict[str, set[str]]:
    """Return the classes of the whole package that have a code, by code."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, set[str]] = defaultdict(set)
    waiting = [PenstockError]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("penstock.") and "code" in kind.__dict__:
                found[kind.code].add(f"{kind.__module__}.{kind.__name__}")
    return found


def test_each_error_has_a_code_of_its_own_and_is_documented() -> None:
    """A code means one condition, and docs/errors.md lists it."""
    found = error_classes()
    shared = {code: names for code, names in found.items() if len(names) > 1}
    assert shared == {}
    assert {check.code for check in every_check()} & found.keys() == set(), (
        "a finding and an error class share a code"
    )
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    missing = sorted(code for code in found if code not in page)
    assert missing == [], "run `make error-page`"


def test_findings_of_doctor_are_documented() -> None:
    """docs/doctor.md, or the page of an engine, lists the code of every check."""
    docs = Path(__file__).parents[2] / "docs"
    names = (
        "doctor.md",
        "ignite.md",
        "lake.md",
        "mysql.md",
        "oracle.md",
        "sqlserver.md",
        "yugabyte.md",
    )
    page = "".join((docs / name).read_text(encoding="utf-8") for name in names)
    assert [check.code for check in every_check() if check.code not in page] == []


def test_hints_name_only_commands_that_exist() -> None:
    """Users type a hint as it stands: `penstock something` must be a command."""
    known = {name.split()[0] for name, _ in commands(cli.cli)}
    root = Path(__file__).parents[2]
    places = [*root.glob("src/penstock/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]
    unknown = {
        (path.name, word)
        for path in places
        for word in re.findall(r"`penstock ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
        if word not in known
    }
    assert unknown == set()
