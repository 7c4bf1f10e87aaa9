"""Processes of penstock that start by a fork of one that has imported everything: in milliseconds.

`python -m harness.kafka.forks` is that process. Each line that it reads is a request in JSON, and
each answer is a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]


class Forks:
    """Starter of processes."""

    def __init__(self, errors: Path) -> None:
        """Start the process that is forked.

        Args:
            errors: file that gets what all processes write to standard error.
        """
        self._errors = errors
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.kafka.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments: str, fault: str = "") -> Fork:
        """Start `penstock` with these arguments."""
        pid = self.ask(arguments=arguments, fault=fault, errors=str(self._errors))
        return Fork(self, pid)


class Fork:
    """One process."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self._status: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit status, or the negative number of its signal; None while it runs."""
        if self._status is None:
            self._status = self._forks.ask(poll=self.pid)
        return self._status

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended, and return its status."""
        deadline_s = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            assert time.monotonic() < deadline_s, "the process does not end"
            time.sleep(0.02)
        return status

    def kill(self) -> None:
        """Kill it, if it runs, and wait for it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(30)

    def terminate(self) -> None:
        """Ask it to end in order."""
        os.kill(self.pid, signal.SIGTERM)


def _serve() -> None:
    import confluent_kafka.admin  # noqa: F401 - imported before the fork

    import penstock.cli
    import penstock.control.consumers.consumer_process
    import penstock.kafka
    from penstock.host import faults

    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _become(request, faults, penstock.cli.main)
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


def _become(request: dict[str, Any], faults: Any, main: Any) -> None:
    code = 1
    try:
        errors = os.open(request["errors"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["penstock", *request["arguments"]]
        faults.arm(request["fault"])
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
