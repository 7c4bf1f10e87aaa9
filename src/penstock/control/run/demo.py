"""`penstock demo`: the main use from start to end, on throw-away servers.

A shop is filled on one server of our own and customers keep it busy while a pipeline copies it
to another one, takes over at the exact position and follows; when the customers have gone home,
both sides are compared. Everything is in temporary folders, which are removed at the end. The
target may be a lake in the working directory, which stays, and is compared through a library that
is not Spark.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.display import human_seconds
from penstock.control.run.supervisor import run_pipeline
from penstock.control.status.live import View
from penstock.control.verify.verify import VerifyResult, verify
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.process import JAVA_VERSIONS, java_version
from penstock.log.layout import DONE_NAME
from penstock.model import PenstockError, TableName
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.demo import DemoLake, WorkloadOptions, demo_engine, demo_lakes

PIPELINE = """\
[pipeline]
name = "shop"
mode = "data+change"
directory = "shop"

[source]
url = "{source}"
tables = ["public.*"]

[target]
url = "{target}"

[changeExtractor]
exitWhenIdle = true
"""
LAKE_FOLDER = "penstock-demo-{}"


class DemoNeedsJava(PenstockError):
    """Error: Spark needs Java, and none or an old one is installed."""

    code = "CT70"


class DemoLakeExists(PenstockError):
    """Error: the working directory has the lake of an earlier demo."""

    code = "CT84"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLake:
    """Lake that the demo leaves.

    Attributes:
        reader: Name of the library that has read it for the comparison.
        lines: Python that reads a table of it.
    """

    folder: Path
    reader: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """Outcome of the demo.

    Attributes:
        rows_changed: By the customers, without cascaded changes.
        lake: None if the target was a server.
    """

    transactions: int
    rows_changed: int
    seconds: float
    compared: VerifyResult
    lake: KeptLake | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock demo --json` prints it at the end."""
        return {
            "equal": self.compared.equal,
            "transactions": self.transactions,
            "rows_changed": self.rows_changed,
            "seconds": round(self.seconds, 1),
            "verify": self.compared.as_dict(),
            **({} if self.lake is None else self._lake_as_dict(self.lake)),
        }

    def _lake_as_dict(self, lake: KeptLake) -> dict[str, Any]:
        return {"lake": str(lake.folder), "reader": lake.reader, "read_it": list(lake.lines)}


def run_demo(
    make_view: Callable[[], View],
    say: Callable[[str], None],
    *,
    options: WorkloadOptions | None = None,
    verbose: bool = False,
    lake: str = "",
) -> DemoOutcome:
    """Run the whole demo.

    Ctrl-C and SIGTERM end it in order at any moment: raises KeyboardInterrupt after servers,
    processes and folders are removed. Raises the errors of pipeline, workload and comparison;
    DemoNeedsJava, DemoLakeExists and those of `DemoLake.check` before anything is started.

    Args:
        make_view: Shows the pipeline's run.
        say: Takes a line of narration.
        options: Of the customers.
        verbose: Print diagnostics, too.
        lake: Name of the engine whose lake is the target, see `demo_lakes`; empty: a server.
    """
    require_java()
    target_lake = _check_lake(lake, Path.cwd()) if lake else None
    began_s = REAL_CLOCK.monotonic_s()
    options = options or WorkloadOptions()
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        demo = demo_engine()
        if target_lake is None:
            say("starting two servers of our own")
            source, target = (stack.enter_context(demo.demo_server()) for _ in range(2))
            target_url, more = target.url, ""
            say(
                f"{source.shown} on ports {source.port} (source) and {target.port} "
                "(target); filling the shop"
            )
        else:
            say("starting a server of our own")
            source = stack.enter_context(demo.demo_server())
            target_url, more = target_lake.url, target_lake.sections(demo.LAKE_CHOICES)
            stack.enter_context(_removed_after_failure(target_lake.folder))
            say(
                f"{source.shown} on port {source.port} (source), a lake in {target_lake.folder} "
                "(target); filling the shop"
            )
        demo.open_shop(source.url)
        config = write_pipeline(folder, source.url, target_url, more)
        workload = stack.enter_context(demo.Workload(source.url, options))
        say(
            f"customers are at work for {options.duration_s:.0f} s, while the pipeline copies the "
            "shop and follows them"
        )
        run_pipeline(config, make_view(), verbose=verbose)
        finished = (config.layout.log / DONE_NAME).exists()
        workload.stop()
        workload.join()
        if not finished:
            raise KeyboardInterrupt
        how = "" if target_lake is None else f", which {target_lake.part.reader} reads"
        say(f"the customers have gone home; comparing source and target{how}, row by row")
        opens = None if target_lake is None else target_lake.part.open_reader
        return DemoOutcome(
            transactions=workload.counts.transactions,
            rows_changed=workload.counts.rows,
            compared=verify(config, on_waiting=say, open_target=opens),
            seconds=REAL_CLOCK.monotonic_s() - began_s,
            lake=None if target_lake is None else target_lake.keep(demo.EXAMPLE),
        )


def closing_lines(outcome: DemoOutcome) -> list[str]:
    """Return the result in plain words; the verdict is last, but for the way to read a lake."""
    result = outcome.compared
    rows = sum(table.source_rows for table in result.tables)
    lines = [
        f"the customers made {count_words(outcome.transactions, 'transaction')}, which changed "
        f"{count_words(outcome.rows_changed, 'row')}; the demo took "
        f"{human_seconds(outcome.seconds)}",
    ]
    for table in result.tables:
        if not table.equal:
            lines.append(
                f"{table.table}: {count_words(table.missing, 'row')} missing in the target, "
                f"{table.surplus} surplus, {table.different} different"
            )
    if result.equal:
        lines.append(
            f"source and target are equal: {count_words(len(result.tables), 'table')}, "
            f"{count_words(rows, 'row')}, "
            f"compared row by row at position {result.at}"
        )
    else:
        lines.append("SOURCE AND TARGET DIFFER: this is a bug in penstock, please report it")
    if outcome.lake is not None:
        lines.append(f"the lake stays in {outcome.lake.folder}; read it in Python:")
        lines += outcome.lake.lines  # not indented: they can be pasted into Python
    return lines


def require_java() -> None:
    """Raise DemoNeedsJava, before anything was started."""
    found = java_version()
    if found not in JAVA_VERSIONS:
        raise DemoNeedsJava(
            f"Spark needs Java {' or '.join(map(str, JAVA_VERSIONS))}; found "
            + ("no java" if found is None else f"version {found}"),
            hint="Install one, on Debian `apt-get install openjdk-17-jre-headless`, or set "
            "JAVA_HOME.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetLake:
    """Lake that the demo fills. folder: absolute."""

    folder: Path
    part: DemoLake

    @property
    def url(self) -> str:
        return self.part.url(self.folder)

    def sections(self, choices: Mapping[str, str]) -> str:
        """Return more sections of the pipeline file. choices: of [target.types]."""
        given = {"target.types": choices, "spark.conf": self.part.properties(self.folder)}
        lines = []
        for section, keys in given.items():
            lines += ["", f"[{section}]"]
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in keys.items()]
        return "\n".join(lines) + "\n"

    def keep(self, example: TableName) -> KeptLake:
        """Return the filled lake. example: table of the shop that is read."""
        return KeptLake(
            folder=self.folder,
            reader=self.part.reader,
            lines=self.part.reading_lines(self.folder, example),
        )


def _check_lake(name: str, directory: Path) -> _TargetLake:
    """Return the lake to fill. Raises DemoLakeExists and the errors of `DemoLake.check`."""
    part = demo_lakes()[name]
    part.check()
    folder = directory / LAKE_FOLDER.format(name)
    if folder.exists():
        raise DemoLakeExists(
            f"{folder} exists already",
            hint=f"Remove it (rm -r {shlex.quote(str(folder))}), or run the demo in another "
            "directory.",
        )
    REAL_FILES.make_directory(folder)
    return _TargetLake(folder=folder, part=part)


@contextmanager
def _removed_after_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_pipeline(folder: Path, source_url: str, target_url: str, more: str = "") -> Config:
    """Write shop.toml as a user would, and read it. more: sections."""
    path = folder / "shop.toml"
    text = PIPELINE.format(source=source_url, target=target_url) + more
    REAL_FILES.replace(path, text.encode(), is_secret=True)
    return load_config(path)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that every `with` block cleans up."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
