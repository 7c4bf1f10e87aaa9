"""Servers and a Spark session that the tests of one process share, as their start takes seconds.

Each is started when the first test asks for it and lives until the last test has ended: tests run
in any order, and pytest alone would end a server when the next test wants one of another version.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.load.session import Session, SessionOptions, start_session


class SharedServers:
    """Running servers, one for each name."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[Hashable, Any] = {}

    def get(self, name: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Return the server of this name; `make` starts it for a with block if it
        does not run yet.
        """
        if name not in self._servers:
            self._servers[name] = self._stack.enter_context(make())
        return self._servers[name]


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[SharedServers]:
    """Shared servers, none of which runs at first."""
    with ExitStack() as stack:
        yield SharedServers(stack)


class SharedSpark:
    """A Spark session of two slots, started when none is alive."""

    def __init__(self, directory: Path) -> None:
        self._options = SessionOptions(work_directory=directory, master="local[2]")
        self._session: Session | None = None

    def get(self) -> Session:
        """Return the session."""
        if self._session is None or not self._session.alive:
            self.close()
            self._session = start_session(self._options)
        return self._session

    def close(self) -> None:
        """End the session, if there is one."""
        if self._session is not None:
            self._session.close()
            self._session = None


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """Shared session, which is not started yet."""
    shared = SharedSpark(tmp_path_factory.mktemp("spark"))
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_spark: SharedSpark) -> Session:
    """A running session: leave it whole."""
    return shared_spark.get()


@pytest.fixture
def no_spark(shared_spark: SharedSpark) -> None:
    """Close the shared session: a process can have one at a time, and this test starts its own."""
    shared_spark.close()
