"""Doctor's checks that ask no server: this machine, the pipeline's directory, the user's Python.

The machine is PK01 to PK05: kernel, Java, disk, Spark's master. The directory is PK19, PK21 and
PK26. The user's Python is PK22 and PK23: consumers' classes and FlexCDC's plugins, whose findings
are warnings, because the load, and other consumers, run without them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

from penstock.codec.kernels import all_compiled
from penstock.consume.classes import check_class
from penstock.consume.plugins import load_plugins
from penstock.control.pipeline.extras import install_line, missing_extras
from penstock.control.pipeline.file_edits import (
    find_edited,
    find_refusal,
    load_settings,
    make_left_error,
)
from penstock.control.pipeline.servers import followed_tables, pipeline_of
from penstock.host.process import JAVA_VERSIONS, java_version
from penstock.model import PenstockError
from penstock.model.whole_number import parse_whole
from penstock.ports.checks import Checks, Finding, Severity, Side, fix_of
from penstock.ports.config import Config, Mode
from penstock.ports.handover import LogWithoutBulkLoad, check_bulk_load, read_handover
from penstock.ports.progress import open_target_reader
from penstock.ports.source import extraction_of


def reinstall_command() -> str:
    """Return the command that installs penstock again as it was installed, kernels built.

    It names the folder that penstock was installed from, or, if that is not known, the current
    folder: penstock is not on a package index.
    """
    python = shlex.quote(sys.executable)
    folder, is_editable = _origin()
    editable = "--editable " if is_editable else ""
    command = f"{python} -m pip install --force-reinstall --no-deps {editable}"
    if folder:
        return command + shlex.quote(folder)
    return f"{command}.  # in the folder of penstock's source"


def _origin() -> tuple[str, bool]:
    """Return the folder, empty if not known, and whether the installation is editable."""
    with suppress(PackageNotFoundError, ValueError):
        text = distribution("penstock").read_text("direct_url.json") or "{}"
        found = json.loads(text)
        url = urlsplit(str(found.get("url", "")))
        if url.scheme == "file" and "dir_info" in found:
            return unquote(url.path), bool(found["dir_info"].get("editable"))
    return "", False


HOST_CHECKS = Checks(Side.HOST)
EXTRA_CHECKS = Checks(Side.HOST)

MASTER_TIMEOUT_S = 5.0
DISK_FREE_BYTES_ERROR = 100 * 2**20
DISK_FREE_BYTES_WARNING = 5 * 2**30


def _report(code: str, severity: Severity, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=code, severity=severity, side=Side.HOST, what=what, why=why, command=command
    )


@HOST_CHECKS.check("PK01", "compiled kernel", change_only=True)
def kernel(_config: Config) -> Iterator[Finding]:
    """Report a missing compiled kernel. The plain decoder gives the same result, slower."""
    if not all_compiled():
        yield _report(
            "PK01",
            Severity.WARNING,
            "the compiled decoder is not in use; the plain Python one runs",
            "everything works, and decoding is thirty times slower or more",
            "unset PENSTOCK_PURE"
            if os.environ.get("PENSTOCK_PURE")
            else f"apt-get install gcc python3-dev && {reinstall_command()}",
        )


@EXTRA_CHECKS.check("PK25", "Python packages")
def packages(config: Config) -> Iterator[Finding]:
    """Check that the packages of every feature that the file uses are installed."""
    for extra, names in missing_extras(config).items():
        yield _report(
            "PK25",
            Severity.ERROR,
            f"the file uses {extra}, and {', '.join(names)} is not installed",
            "what needs it would end at its start, and be started again in vain",
            install_line([extra]),
        )


@HOST_CHECKS.check("PK02", "Java", load_only=True)
def java(_config: Config) -> Iterator[Finding]:
    """Check that Java 17 or 21 is installed, which Spark needs."""
    version = java_version()
    if version not in JAVA_VERSIONS:
        have = "no Java is found" if version is None else f"Java {version} is found"
        yield _report(
            "PK02",
            Severity.ERROR,
            f"{have}; Spark needs {' or '.join(map(str, JAVA_VERSIONS))}",
            "bulk load and change loader run on Spark",
            "apt-get install openjdk-17-jre-headless  # or set JAVA_HOME to one",
        )


@HOST_CHECKS.check("PK03", "disk space")
def disk(config: Config) -> Iterator[Finding]:
    """Check that there is room for the change log, the spill files and Spark's scratch files."""
    place = config.directory
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < DISK_FREE_BYTES_WARNING:
        severity = Severity.ERROR if free < DISK_FREE_BYTES_ERROR else Severity.WARNING
        yield _report(
            "PK03",
            severity,
            f"{free / 2**30:.1f} GiB are free on the disk of {config.directory}",
            "the change log stops when the disk is full, and the source keeps its WAL meanwhile",
            "set changeLoader.removeFiles = true, or free some space",
        )


@HOST_CHECKS.check("PK04", "Spark's master", load_only=True)
def spark_master(config: Config) -> Iterator[Finding]:
    """Check that the standalone master of [spark] answers at one of its addresses."""
    places = _addresses(config.spark.master)
    said = []
    for host, port in places:
        try:
            socket.create_connection((host, port), MASTER_TIMEOUT_S).close()
            return
        except OSError as error:
            said.append(f"{host}:{port}: {error.strerror or error}")
    if places:
        yield _report(
            "PK04",
            Severity.ERROR,
            f"Spark's master {config.spark.master} does not answer ({'; '.join(said)})",
            "bulk load and change loader run on Spark",
            'start the master, or set [spark] master = "local[*]"',
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master that a spark:// URL names, of other masters none."""
    if not master.startswith("spark://"):
        return []
    parts = (text.rpartition(":") for text in master.removeprefix("spark://").split(","))
    return [(host, parse_whole(port, 65535, otherwise=0)) for host, _, port in parts]


DIRECTORY_CHECKS = Checks(Side.HOST)


@DIRECTORY_CHECKS.check("PK19", "change log begun with a bulk load", change_only=True)
def begun_with(config: Config) -> Iterator[Finding]:
    """Check that a log in mode data+change began with a bulk load."""
    if config.pipeline.mode is not Mode.DATA_CHANGE:
        return
    begun = extraction_of(config).has_begun(pipeline_of(config))
    try:
        check_bulk_load(config, read_handover(config), has_begun=begun)
    except LogWithoutBulkLoad as error:
        yield Finding(
            code="PK19",
            severity=Severity.ERROR,
            side=Side.HOST,
            what=error.message,
            why="it is not known which loaded rows its changes continue",
            command=fix_of(error),
        )


@DIRECTORY_CHECKS.check("PK21", "file that keeps progress", change_only=True)
def progress_kept(config: Config) -> Iterator[Finding]:
    """Check, if there is no target, that the progress file in the directory can be read."""
    if config.has_target:
        return
    url = config.target.url
    try:
        with closing(open_target_reader(url, application_name="penstock doctor")) as reader:
            if reader.present()[0]:
                reader.action()
                reader.newest("CE")
    except PenstockError as error:
        yield Finding(
            code="PK21",
            severity=Severity.ERROR,
            side=Side.HOST,
            what=error.message,
            why="progress would not be recorded, nor an action obeyed",
            command=fix_of(error),
        )


@DIRECTORY_CHECKS.check("PK26", "edits of the pipeline file")
def check_edits(config: Config) -> Iterator[Finding]:
    """Check that no edit since the last start loses rows, and name the tables it leaves out."""
    error = find_refusal(config)
    if error is not None:
        yield _edit(Severity.ERROR, error, "rows or changes would be missing in the target")
        return
    known = followed_tables(config) if config.pipeline.mode.has_change else None
    if known is None:
        return
    for table in find_edited(config, known, load_settings(config))[0]:
        why = make_left_error(config, table)
        yield _edit(Severity.WARNING, why, "its changes from now on do not arrive")


def _edit(severity: Severity, error: PenstockError, why: str) -> Finding:
    return Finding(
        code="PK26",
        severity=severity,
        side=Side.HOST,
        what=error.message,
        why=why,
        command=fix_of(error),
    )


CONSUMER_CHECKS = Checks(Side.HOST)


def _report_error(
    config: Config, code: str, error: PenstockError, why: str, name: str = ""
) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        side=Side.HOST,
        what=error.message,
        why=why,
        command=fix_of(error).replace("FILE NAME", f"{config.path.name} {name}"),
    )


@CONSUMER_CHECKS.check("PK22", "classes of consumers", change_only=True)
def consumer_classes(config: Config) -> Iterator[Finding]:
    """Check that each class can be imported, is a consumer, and accepts its options. None is
    instantiated.
    """
    for name, section in config.consumers.items():
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a module's prints are not findings
                check_class(section.class_, section.options, beside=config.path.parent)
        except PenstockError as error:
            yield _report_error(
                config, "PK22", error, f"consumer {name} would end at its start", name
            )


@CONSUMER_CHECKS.check("PK23", "plugins of FlexCDC", change_only=True)
def flexcdc_plugins(config: Config) -> Iterator[Finding]:
    """Check that each plugin can be imported and instantiated, and has all nine callbacks."""
    settings = config.flexcdc
    if settings is None or not settings.plugin:
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            load_plugins(settings.plugin, settings.plugin_order, config.path.parent)
    except PenstockError as error:
        yield _report_error(config, "PK23", error, "`penstock flexcdc run` would end at its start")
