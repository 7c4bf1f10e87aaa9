"""MySQL and MariaDB as sources for a remote machine: it reads snapshots through the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import BankPipeline
from penstock.engines.mysql.proxy_protocol import ProxyAddress
from penstock.load.ledger import read_ledger
from plugins.standalone import Standalone

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

PATIENCE_S = 500.0
SOURCES = pytest.mark.parametrize("source", ["mariadb", "mysql"])


def bank(folder: Path, cluster: Standalone, source: str, **spark: str) -> BankPipeline:
    """Return a bank's pipeline on the cluster; spark: more keys of [spark]."""
    sections: dict[str, Mapping[str, Any]] = {
        "spark": {"master": cluster.master, **spark},
        "spark.conf": cluster.conf,
    }
    return BankPipeline(folder, 1911, source=source, sections=sections, host=cluster.server_address)


def begin(pipeline: BankPipeline, cluster: Standalone, fault: str = "") -> ProxyAddress:
    """Start both processes and the remote machine; return where its executors read the snapshot."""
    pipeline.extract.start()
    handover = pipeline.directory / "state" / "handover.json"

    def snapshot_id() -> str:
        found = json.loads(handover.read_text()) if handover.exists() else {}
        return str(found.get("state", {}).get("snapshot_id", ""))

    pipeline.until(snapshot_id, "the point")
    address = ProxyAddress.parse(snapshot_id())
    pipeline.load.start()
    faulty = {"PENSTOCK_FAULT": fault, "PENSTOCK_FAULT_ONCE": str(pipeline.load.once)}
    cluster.remote.start(faulty if fault else None)
    return address


def end(pipeline: BankPipeline) -> None:
    """Check that all rows came from the one point, and that both sides are equal
    after the changes.
    """
    state = pipeline.directory / "state"
    pipeline.until(lambda: read_ledger(state).finished, "all rows", PATIENCE_S)
    log = (pipeline.directory / "run" / "load.log").read_text()
    assert "loaded again from the start" not in log
    pipeline.transactions_go_on()
    pipeline.finish()


@SOURCES
def test_a_machine_apart_reads_a_snapshot(
    tmp_path: Path, standalone: Standalone, source: str
) -> None:
    """The snapshot is read at Spark's driver host, without any setting for it in the file."""
    standalone.cables()
    with bank(tmp_path, standalone, source) as pipeline:
        address = begin(pipeline, standalone)
        assert address.host == standalone.address
        assert address.fingerprint
        end(pipeline)


@SOURCES
def test_the_machine_that_reads_vanishes(
    tmp_path: Path, standalone: Standalone, source: str
) -> None:
    """Another machine reads at the same point if the first vanishes in the middle of a result."""
    standalone.cables()
    with bank(tmp_path, standalone, source) as pipeline:
        begin(pipeline, standalone, "bulk.chunk.reading:1:sleep")
        pipeline.until(lambda: pipeline.load.has_reached, "rows that are read", PATIENCE_S)
        standalone.vanish()
        standalone.near.start()
        end(pipeline)


def test_an_address_that_only_this_machine_has(tmp_path: Path, standalone: Standalone) -> None:
    """The load does not begin, and its error names the address."""
    standalone.cables()
    with bank(tmp_path, standalone, "mariadb", snapshotAddress="127.0.0.1") as pipeline:
        begin(pipeline, standalone)
        assert pipeline.load.finish(PATIENCE_S) == 1
        assert pipeline.load.error["code"] == "LD14"
        assert "would look for spark.snapshotAddress on itself" in pipeline.load.error["error"]
