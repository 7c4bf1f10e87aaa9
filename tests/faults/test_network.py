"""The network between any two parts breaks: cut, stalled, slow, torn in the middle of a message.

A whole pipeline runs through two proxies, one in front of each server. No half is restarted
manually: both reconnect, and in the end both sides are equal.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.faults.kills import POSTGRES, SQLSERVER, BankPipeline
from harness.pipelines.bank_engines import session
from harness.servers.proxy import Proxy

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

STALL_S = 5.0
COMMIT_OF_SQLSERVER = "COMMIT TRANSACTION".encode("utf-16-le")
IMPATIENT = {"wal_sender_timeout": "2s"}  # the server closes a stalled connection


class Network:
    """The two proxies, and the failures that a test can cause by name."""

    def __init__(self, pipeline: BankPipeline, source: Proxy, target: Proxy) -> None:
        self.pipeline = pipeline
        self.source = source
        self.target = target
        commit = COMMIT_OF_SQLSERVER if pipeline.kinds[1] == SQLSERVER else b"COMMIT"
        self.deeds: dict[str, Callable[[], None]] = {
            "source cut": source.cut,
            "source stalled": lambda: source.stall(STALL_S),
            "source slowed": lambda: self.slow_down(source),
            "source torn": lambda: self.tear(source),
            "target cut": target.cut,
            "target stalled": lambda: target.stall(STALL_S),
            "target slowed": lambda: self.slow_down(target),
            # Rows go into MySQL as text; only their size distinguishes them from commands.
            "staged rows torn": lambda: self.tear(
                target, b"PGCOPY" if pipeline.kinds[1] == POSTGRES else b"", to_server=True
            ),
            "commit torn": lambda: self.tear(target, commit, to_server=True),
            "answer to commit lost": lambda: self.tear(target, commit, to_server=True, whole=True),
            "both cut": self.both_cut,
        }

    def slow_down(self, proxy: Proxy) -> None:
        """Limit the bandwidth for a while."""
        proxy.slow(200_000)
        time.sleep(STALL_S)
        proxy.slow(0)

    def tear(self, proxy: Proxy, *pattern: bytes, **how: bool) -> None:
        """Wait until the part to be torn passes through."""
        proxy.tear(*pattern, **how)
        assert proxy.torn.wait(60), f"{pattern} did not come by"

    def both_cut(self) -> None:
        """Cut all connections at once."""
        self.source.cut()
        self.target.cut()

    def wait_until_copied(self, deed: str) -> None:
        """Wait until the bank's current changes are in the copy."""
        number = self._last_transfer(self.pipeline.source_url)
        self.pipeline.until(
            lambda: self._last_transfer(self.pipeline.target_url) >= number,
            f"transfer {number} in the copy after {deed}",
        )

    def _last_transfer(self, url: str) -> int:
        with session(url, self.pipeline.namespace) as sql:
            return int(sql.execute("select coalesce(max(id), 0) from transfer")[0][0])


def in_clear(url: str) -> str:
    """Return the URL without MySQL's default TLS, so that the proxy sees the text."""
    if url.startswith(("postgres", "sqlserver")):  # the simulated one has no TLS
        return url
    return f"{url}?sslmode=disable&get_server_public_key=true"


def _pipeline_survives(
    folder: Path,
    deeds: Sequence[str],
    seed: int,
    *,
    major: int | None = None,
    kinds: tuple[str, str] = (POSTGRES, POSTGRES),
) -> None:
    source_kind, target_kind = kinds
    settings = IMPATIENT if source_kind == POSTGRES else None
    with (
        BankPipeline(
            folder,
            seed,
            source=source_kind,
            target=target_kind,
            major=major,
            source_settings=settings,
        ) as pipeline,
        Proxy(pipeline.source.port) as source,
        Proxy(pipeline.target.port) as target,
    ):
        pipeline.configure(
            source=in_clear(source.url(pipeline.source_url)),
            target=in_clear(target.url(pipeline.target_url)),
        )
        network = Network(pipeline, source, target)
        pipeline.start()
        for deed in deeds:
            network.deeds[deed]()
            network.wait_until_copied(deed)
            pipeline.check_books()
        assert pipeline.extract.start_count == pipeline.load.start_count == 1
        assert source.cut_count + target.cut_count > 0
        pipeline.finish()


EVERYDAY = (
    "source torn",
    "target cut",
    "source stalled",
    "staged rows torn",
    "answer to commit lost",
)
ALL = (
    *EVERYDAY,
    "source cut",
    "source slowed",
    "target stalled",
    "target slowed",
    "commit torn",
    "both cut",
)


@pytest.mark.parametrize(
    ("major", "deeds"),
    [
        pytest.param(None, EVERYDAY, id="some"),
        pytest.param(15, ALL, id="pg15", marks=pytest.mark.long),
    ],
)
def test_each_breakage_once(tmp_path: Path, major: int | None, deeds: tuple[str, ...]) -> None:
    """The copy catches up after each kind of failure on both connections."""
    _pipeline_survives(tmp_path, deeds, 1, major=major)


@pytest.mark.parametrize(
    ("source", "target", "deeds"),
    [
        pytest.param("mariadb", "mysql", EVERYDAY, id="some", marks=pytest.mark.long),
        pytest.param("mysql", "mariadb", ALL, id="mysql-mariadb", marks=pytest.mark.long),
        pytest.param("mariadb", "postgres", ALL, id="mariadb-postgres", marks=pytest.mark.long),
    ],
)
def test_each_breakage_once_of_mysql(
    tmp_path: Path, source: str, target: str, deeds: tuple[str, ...]
) -> None:
    """The copy catches up after each kind of failure with MySQL and MariaDB on either side."""
    _pipeline_survives(tmp_path, deeds, 1, kinds=(source, target))


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "target", "deeds"),
    [
        pytest.param(POSTGRES, SQLSERVER, ALL, id="postgres-sqlserver"),
        pytest.param(SQLSERVER, POSTGRES, ALL, id="sqlserver-postgres"),
    ],
)
def test_each_breakage_once_of_sqlserver(
    tmp_path: Path, source: str, target: str, deeds: tuple[str, ...]
) -> None:
    """The copy catches up after each kind of failure with SQL Server on either side."""
    _pipeline_survives(tmp_path, deeds, 1, kinds=(source, target))


@pytest.mark.long
@pytest.mark.parametrize("seed", [2])
def test_breakages_at_random(tmp_path: Path, seed: int) -> None:
    """The copy catches up after twelve failures drawn from a seed."""
    chance = random.Random(seed)
    names = [
        "source cut",
        "source torn",
        "target cut",
        "target stalled",
        "staged rows torn",
        "commit torn",
        "answer to commit lost",
        "both cut",
    ]
    _pipeline_survives(tmp_path, chance.choices(names, k=12), seed, major=18)
