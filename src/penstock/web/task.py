"""One doctor or verify, as a program of its own: `python -m penstock.web.task doctor FILE`.

It reports its progress as JSON lines on standard error, which `host.process.Child` reads, and ends
with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.actions import HURRIED_EXIT_CODE, StopRequest
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.diagnostics import configure_diagnostics
from penstock.control.verify.compare import CompareProgress
from penstock.control.verify.verify import verify
from penstock.host.clock import REAL_CLOCK
from penstock.host.process import end_with_parent
from penstock.host.supervised import own_process
from penstock.model import PenstockError
from penstock.ports.config import Config

TELL_INTERVAL_S = 0.25
STOP_WITHIN_S = 3.0

Tell = Callable[[dict[str, Any]], None]


def tell(line: dict[str, Any]) -> None:
    """Write one line to the process that started us."""
    sys.stderr.write(msgspec.json.encode(line, enc_hook=str).decode() + "\n")
    sys.stderr.flush()


def run_doctor(config: Config) -> None:
    """Examine, and report each finding at once."""
    report = examine(
        config,
        executors=True,
        on_finding=lambda finding: tell({"finding": finding.as_dict()}),
    )
    tell({"report": report.as_dict()})


def run_verify(config: Config, stop: StopRequest) -> None:
    """Compare, and report waits and progress."""
    told_s = float("-inf")
    lock = threading.Lock()

    def on_progress(seen: CompareProgress) -> None:
        nonlocal told_s
        with lock:  # two sessions per side report at the same time
            now_s = REAL_CLOCK.monotonic_s()
            if now_s - told_s < TELL_INTERVAL_S:
                return
            told_s = now_s
            tell({"progress": {**msgspec.to_builtins(seen), "table": str(seen.table)}})

    result = verify(
        config,
        on_progress=on_progress,
        on_waiting=lambda text: tell({"waiting": text}),
        stop=stop,
    )
    tell({"result": result.as_dict()})


def obey_signals(stop: StopRequest) -> None:
    """End in order on a signal, and at once if that takes longer than STOP_WITHIN_S.

    In order means that the loader no longer waits for us; comparing rows delays no other process.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.note_signal()
        timer = threading.Timer(STOP_WITHIN_S, lambda: os._exit(HURRIED_EXIT_CODE))
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def main(arguments: list[str]) -> int:
    """Run the task; return exit code 0 even if something was found, 1 for a reported error."""
    kind, path = arguments
    stop = StopRequest()
    obey_signals(stop)
    end_with_parent()
    own_process()
    configure_diagnostics(verbose=False)
    try:
        config = load_config(Path(path))
        if kind == "doctor":
            run_doctor(config)
        else:
            run_verify(config, stop)
    except PenstockError as error:
        tell({"error": error.as_dict()})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
