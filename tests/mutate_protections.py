"""Take away one protection at a time, and see that a test notices.

`python tests/mutate_protections.py [NAME...]` copies the source and the tests to a temporary
folder, makes each change there, runs the tests that have to fail, and prints one line per
protection. Exit code 1 when a test passes without the protection, or a change no longer fits the
source.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

OPTIONS = ("-q", "-x", "-p", "no:randomly", "--tb=line")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A change of one file below src/penstock, and the tests that must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    old_after: str = ""
    new_after: str = ""

    def applied(self, text: str) -> str:
        """The changed file; raises ValueError when the change does not fit exactly once."""
        for old, new in ((self.old, self.new), (self.old_after, self.new_after)):
            if old and text.count(old) != 1:
                raise ValueError(f"the change fits {text.count(old)} times")
            text = text.replace(old, new) if old else text
        return text


ADVANCE = "self._advance()\n"
END_CHUNK = "        progress.end_chunk(writer, table=task.table, number=number, row_count=rows)\n"
COMMITTED = '        faults.point("bulk.chunk.committed")\n'

MUTATIONS = (
    Mutation(
        name="fdatasync before a flush point counts",
        file="log/frame_buffer.py",
        old="        self._file.fdatasync()\n",
        new="",
        tests="tests/property/test_log_crash.py",
    ),
    Mutation(
        name="acknowledge only what is durable",
        file="source/extract.py",
        old='        writer.write(run)\n        point("extract.write.after")\n',
        new="        writer.write(run)\n        if self._source and run.end:\n"
        "            self._source.acknowledge(run.end.position)\n"
        '        point("extract.write.after")\n',
        tests="tests/faults/test_extract_kill.py",
    ),
    Mutation(
        name="recovery cuts behind the last flush point",
        file="log/recovery.py",
        old="            file.truncate(found.flush_end_bytes)\n",
        new="            pass\n",
        tests="tests/unit/test_log_recovery.py tests/property/test_log_crash.py",
    ),
    Mutation(
        name="cut bytes are durable before the cut",
        file="log/cut.py",
        old="        file.fsync()\n",
        new="",
        tests="tests/unit/test_log_cut.py",
    ),
    Mutation(
        name="an empty log knows where it begins",
        file="source/extract.py",
        old="        if writer.durable.position == 0 and origin.begin:\n",
        new="        if False:\n",
        tests="tests/faults/test_extract_kill.py",
    ),
    Mutation(
        name="recovery writes unproven bytes again",
        file="log/recovery.py",
        old="            file.overwrite(offset, block)\n",
        new="",
        tests="tests/property/test_log_crash.py",
    ),
    Mutation(
        name="the state knows of a segment before it gets its name",
        file="log/writer.py",
        old="publish(self._place, store_state(self._place, state), number)",
        new="publish(self._place, state, number)",
        tests="tests/unit/test_log_recovery.py tests/property/test_log_crash.py",
    ),
    Mutation(
        name="checksums are compared",
        file="codec/ckt.py",
        old="    if crc != expected or flags or reserved:\n",
        new="    if flags or reserved:\n",
        tests="tests/unit/test_log_segment.py tests/servers/test_loader.py",
    ),
    Mutation(
        name="a hole in the segments stops the loader",
        file="log/layout.py",
        old="    if hole is not None:\n        raise missing",
        new="    if False:\n        raise missing",
        tests="tests/unit/test_log_segment.py tests/servers/test_loader.py",
    ),
    Mutation(
        name="progress in the transaction of the rows",
        file="load/batch.py",
        old="            " + ADVANCE,
        new="",
        old_after='        faults.point("load.commit.after")\n',
        new_after='        faults.point("load.commit.after")\n'
        "        with target.transaction():\n            " + ADVANCE,
        tests="tests/servers/test_loader.py",
    ),
    Mutation(
        name="the loader skips what is applied",
        file="load/stage.py",
        old="            gsn_after=applied.gsn,\n",
        new="            gsn_after=segments[0].start.gsn,\n",
        tests="tests/servers/test_loader.py",
    ),
    Mutation(
        name="staged rows are counted before they are applied",
        file="load/batch.py",
        old="            target.check_staged(self._expected)\n",
        new="",
        tests="tests/servers/test_merge.py",
    ),
    Mutation(
        name="staged rows are those of this batch",
        file="load/postgres/staging.py",
        old="if count != rows or stamps.get(name) != stamp:",
        new="if count != rows:",
        tests="tests/servers/test_merge.py",
    ),
    Mutation(
        name="a batch staged ahead has merge tables of its own",
        file="load/ahead.py",
        old="place=0 if applying is None else 1 - applying.place",
        new="place=0",
        tests="tests/servers/test_loader_ahead.py",
    ),
    Mutation(
        name="a hold abandons what is staged ahead",
        file="load/loader.py",
        old="            self._abandon()\n            self._apart.abandon()\n",
        new="            self._apart.abandon()\n",
        tests="tests/servers/test_loader_ahead.py",
    ),
    Mutation(
        name="a pause keeps what is staged ahead waiting",
        file="load/loader.py",
        old='        if self._actions.word() == "PAUSE":\n',
        new='        if self._actions.word() == "PAUSE" and not self._ahead:\n',
        tests="tests/servers/test_loader_ahead.py",
    ),
    Mutation(
        name="a chunk's ledger row in the transaction of its rows",
        file="load/chunk.py",
        old="    " + END_CHUNK + COMMITTED,
        new=COMMITTED + END_CHUNK,
        tests="tests/servers/test_bulk_faults.py -k killed",
    ),
    Mutation(
        name="a lost worker while Spark starts",
        file="load/session.py",
        old="START_ATTEMPTS_MAX = 3",
        new="START_ATTEMPTS_MAX = 1",
        tests="tests/faults/test_spark_start.py",
    ),
)


def outcome(mutation: Mutation, tree: Path) -> tuple[bool, str]:
    """Whether a test failed, and which did first."""
    path = tree / "src/penstock" / mutation.file
    whole = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutation.applied(whole), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *mutation.tests.split()],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
    except ValueError as error:
        return False, str(error)
    finally:
        path.write_text(whole, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+(?: \S+)*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return True, failed[1].rpartition("/")[2]
    return False, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[
        -200:
    ]


def main() -> int:
    """Run all, or those whose names hold one of the given words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    flags = parser.parse_args()
    chosen = [m for m in MUTATIONS if not flags.names or any(n in m.name for n in flags.names)]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutations-") as folder:
        tree = Path(folder)
        for name in ("src", "tests", "pyproject.toml"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, tree / name)
        for mutation in chosen:
            noticed, text = outcome(mutation, tree)
            bad += not noticed
            said = "noticed by" if noticed else "NOT NOTICED:"
            sys.stdout.write(f"{mutation.name}: {said} {text}\n")
            sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
