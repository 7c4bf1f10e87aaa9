"""The log's writer is killed by SIGKILL at each of its named fault points."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.pipelines.log import plain_segment
from penstock.host import faults
from penstock.log import Writer, check, links, open_segment

assert Writer.__module__  # the import declares the writer's fault points

KILLED = """
import sys
from pathlib import Path
from harness.pipelines.log import SOURCE, inserts, number_rows, run_of
from penstock.log import Writer, WriterOptions
from penstock.model.keeping import KEEP_NONE
keeping = KEEP_NONE if sys.argv[3] else None
options = WriterOptions(consumers=Path(sys.argv[2]), keeping=keeping)
log = Writer.open(Path(sys.argv[1]), log_id=None, source=SOURCE, options=options)
print("gsn", log.resume.gsn, flush=True)
groups = number_rows([inserts(1, first=n) for n in range(40)])
for group in groups[log.resume.trx:]:
    log.write(run_of(group))
    if group[0].trx % 3:
        print("gsn", log.flush().gsn, flush=True)
    else:
        log.rotate()
log.rotate()
print("end", flush=True)
"""


@pytest.mark.promise
@pytest.mark.faults
@pytest.mark.parametrize("name", [n for n in faults.names() if n.startswith("log.")])
def test_a_process_killed_at_any_named_point_loses_nothing_it_flushed(
    tmp_path: Path, name: str
) -> None:
    """A real SIGKILL on real files, when the point is reached again, loses no flushed row."""
    links.enable(tmp_path / "cdc" / "lake")
    removes = ".unlink." in name  # no loader: only the consumer's links stay
    command = [sys.executable, "-c", KILLED, str(tmp_path / "log"), str(tmp_path / "cdc")]
    command.append("without a loader" if removes else "")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    faulty = [f"{name}:2:kill"]
    if "recovery" in name:
        # Some points of recovery are reached only if there is a leftover file.
        left_by = "log.create.after" if "discard" in name else "log.flush.after"
        faulty = [f"{left_by}:2:kill", f"{name}:1:kill"]
    if ".cut." in name:
        faulty = ["log.flush.after:2:kill", f"{name}:1:kill"]
    flushed = 0
    for fault in (*({"PENSTOCK_FAULT": spec} for spec in faulty), {}):
        done = subprocess.run(
            command, env={**environment, **fault}, capture_output=True, text=True, check=False
        )
        lines = done.stdout.splitlines()  # also has diagnostics
        numbers = [int(line.split()[1]) for line in lines if line.startswith("gsn ")]
        assert all(number >= flushed for number in numbers), "resumed before what was flushed"
        flushed = max([flushed, *numbers])
        if fault:
            assert done.returncode == -signal.SIGKILL, done.stderr
            if ".cut." in name and fault == {"PENSTOCK_FAULT": faulty[0]}:
                with next((tmp_path / "log").glob("*.ckt_")).open("ab") as torn:
                    torn.write(b"a write that the power cut")
        else:
            assert done.returncode == 0, done.stderr
            assert lines[-1] == "end"
    assert not list((tmp_path / "log").glob("*.cut-*")), "the log has gone past them"
    linked = tmp_path / "cdc" / "lake"
    names = sorted(path.name for path in linked.glob("*.ckt"))
    left = sorted(path.name for path in (tmp_path / "log").glob("*.ckt"))
    assert left == ([] if removes else names)
    assert not [f for f in check(tmp_path / "log") if f.severity == "error"]
    rows = []
    for number in range(len(names)):
        with open_segment(linked / f"{number}.ckt") as segment:
            rows += plain_segment(segment)
    assert [row[0] for row in rows] == list(range(1, 41))
