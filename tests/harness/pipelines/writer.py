"""Writing to a database without a pause while a test reads from it."""

from __future__ import annotations

import threading
import time

from penstock.engines.postgres.connect import connect

WAIT_S = 30.0


class Writer(threading.Thread):
    """A thread that repeats statements, each a transaction of its own, until it is stopped."""

    def __init__(self, url: str, *statements: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.statements = statements
        self.stopped = threading.Event()
        self.round_count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Repeat the statements until the thread is stopped; an error ends it earlier."""
        try:
            with connect(self.url, application_name="writer") as connection:
                while not self.stopped.is_set():
                    for statement in self.statements:
                        connection.execute(statement)
                    self.round_count += 1
        except BaseException as error:
            self.error = error
            raise

    def wait_for(self, round_count: int) -> None:
        """Wait until so many more rounds are done."""
        until, deadline = self.round_count + round_count, time.monotonic() + WAIT_S
        while self.round_count < until:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, "the writer does not get on"
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop it; its writes are committed."""
        self.stopped.set()
        self.join()
        assert self.error is None, self.error

    def __enter__(self) -> Writer:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()
