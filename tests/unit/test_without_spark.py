"""Commands without a target need neither Spark nor drivers of other engines than the source's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name, name=name)

absent = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
DRIVERS = ("psycopg", "pymysql")
WEB = ("jinja2", "prometheus_client", "starlette", "uvicorn")


def import_without(absent: tuple[str, ...], *names: str) -> None:
    """Import these modules in a process that lacks the absent ones."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(absent), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_core_alone_can_be_imported() -> None:
    """The package, its commands and reading a log work with the dependencies without an extra."""
    names = ("penstock", "penstock.cli", "penstock.control.status.log_view", "penstock.log.writer")
    import_without(("pyspark", *DRIVERS, *WEB), *names)


@pytest.mark.parametrize(
    "command",
    [
        "run.extract_process",
        "run.supervisor",
        "status.status",
        "doctor.doctor",
        "run.reset",
        "tables.table_commands",
        "tables.table_list",
    ],
)
def test_commands_of_an_extraction_need_no_spark(command: str) -> None:
    """`penstock load` and `copy` do; commands that run, watch and steer an extraction do not."""
    import_without(("pyspark", *DRIVERS, *WEB), f"penstock.control.{command}")


def test_the_web_interface_needs_no_spark() -> None:
    """The interface shows the content of the files."""
    import_without(("pyspark", *DRIVERS), "penstock.web.app")


@pytest.mark.parametrize(
    ("scheme", "driver", "extra"),
    [("postgresql", "psycopg", "postgres"), ("mysql", "pymysql", "mysql")],
)
def test_a_driver_that_is_not_installed_is_named(
    tmp_path: Path, scheme: str, driver: str, extra: str
) -> None:
    """A missing driver is not our defect: one typed error has the command that installs it."""
    path = tmp_path / "shop.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "shop"\n'
        f'[source]\nurl = "{scheme}://u@127.0.0.1:1/d"\ntables = ["*.*"]\n'
    )
    run = f"{PROGRAM}\nfrom penstock.cli.entry import run_guarded\n"
    run += f"run_guarded(['extract', {str(path)!r}, '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", run, ",".join(DRIVERS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    error = json.loads(done.stderr.splitlines()[-1])
    assert (error["code"], f"penstock[{extra}]" in error["hint"]) == ("HS34", True), error
    assert driver in error["error"]
