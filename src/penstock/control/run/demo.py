"""`penstock demo`: the main use from start to end, on two throw-away servers.

A shop is filled on one server of our own and customers keep it busy while a pipeline copies it
to the other, takes over at the exact position and follows; when the customers have gone home,
both sides are compared. Everything is in temporary folders, which are removed at the end.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
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
from penstock.model import PenstockError
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.demo import WorkloadOptions, demo_engine

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


class DemoNeedsJava(PenstockError):
    """Error: Spark needs Java, and none or an old one is installed."""

    code = "CT70"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """Outcome of the demo. rows_changed: by the customers, without cascaded changes."""

    transactions: int
    rows_changed: int
    seconds: float
    compared: VerifyResult

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock demo --json` prints it at the end."""
        return {
            "equal": self.compared.equal,
            "transactions": self.transactions,
            "rows_changed": self.rows_changed,
            "seconds": round(self.seconds, 1),
            "verify": self.compared.as_dict(),
        }


def run_demo(
    make_view: Callable[[], View],
    say: Callable[[str], None],
    *,
    options: WorkloadOptions | None = None,
    verbose: bool = False,
) -> DemoOutcome:
    """Run the whole demo. make_view: shows the pipeline's run; say: takes a line of narration.

    Ctrl-C and SIGTERM end it in order at any moment: raises KeyboardInterrupt after servers,
    processes and folders are removed. Raises the errors of pipeline, workload and comparison.
    """
    require_java()
    began_s = REAL_CLOCK.monotonic_s()
    options = options or WorkloadOptions()
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        demo = demo_engine()
        say("starting two servers of our own")
        source, target = (stack.enter_context(demo.demo_server()) for _ in range(2))
        say(
            f"{source.shown} on ports {source.port} (source) and {target.port} "
            "(target); filling the shop"
        )
        demo.open_shop(source.url)
        config = write_pipeline(folder, source.url, target.url)
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
        say("the customers have gone home; comparing source and target row by row")
        return DemoOutcome(
            transactions=workload.counts.transactions,
            rows_changed=workload.counts.rows,
            compared=verify(config, on_waiting=say),
            seconds=REAL_CLOCK.monotonic_s() - began_s,
        )


def closing_lines(outcome: DemoOutcome) -> list[str]:
    """Return the result in plain words; the last line is the verdict."""
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


def write_pipeline(folder: Path, source_url: str, target_url: str) -> Config:
    """Write shop.toml as a user would, and read it."""
    path = folder / "shop.toml"
    text = PIPELINE.format(source=source_url, target=target_url)
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
