"""A simulated SQL Server that can be killed and started again, as the other engines' servers can.

Not here: the simulator that tests share (`plugins.sqlserver`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.sqlserver import POSTGRES_VERSION, SimServer

DATABASE = "bank"


class EmbeddedSQLServer:
    """A simulator over a PostgreSQL server of its own, to be entered.

    Attributes:
        sim: The running simulator.
        port: TCP port on 127.0.0.1; it stays the same over crashes.
    """

    def __init__(self) -> None:
        self._postgres = EmbeddedPostgres(major=POSTGRES_VERSION)
        self.port = 0

    def __enter__(self) -> Self:
        """Start both servers."""
        self._postgres.__enter__()
        try:
            self.start()
        except BaseException:
            self._postgres.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop both servers."""
        self.sim.close()
        self._postgres.__exit__(kind, error, trace)

    def start(self) -> None:
        """Start what does not run: on the same port as before."""
        self._postgres.start()
        options = ("--port", str(self.port)) if self.port else ()
        self.sim = SimServer(self._postgres.url(), *options)
        self.port = self.sim.port

    def crash(self) -> None:
        """Kill the simulator and the server behind it with SIGKILL; start() recovers."""
        self.sim.kill()
        self.sim.close()
        self._postgres.crash()

    def make_database(self, name: str = DATABASE) -> str:
        """Create a database, and return its URL."""
        self.sim.execute(f"CREATE DATABASE [{name}]", "master")
        return self.sim.url(name)
