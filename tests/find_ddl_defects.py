"""Plant a defect in following schema changes, and count the histories until it is found.

`python tests/find_ddl_defects.py [WORD...]` plants each defect of `ddl_defects.toml` whose name has
one of the words in a copy of the tree, runs the DDL fuzzer there on one pair of servers, and prints
after how many histories one ended differently than without the defect. Exits with 1 if a defect is
not found within 300.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mutate_protections import Mutant, Tree, read_mutants, say

HISTORIES_MAX = 300
AT_ONCE = 40
TIMEOUT_S = 600  # the histories of a seed take about a minute
DEFECTS = Path(__file__).with_name("ddl_defects.toml")
_ENDED = re.compile(r"^=== .*, history (\S+): (\S+) ?(\S*)$", re.MULTILINE)


def read_ends(folder: Path, flags: list[str], seed: int) -> dict[str, str]:
    """Run the histories of a seed; return the outcomes of those that are not equal, by number."""
    command = [sys.executable, "tests/fuzz_ddl.py", "--histories", str(AT_ONCE)]
    with subprocess.Popen(
        [*command, "--seed", str(seed), *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as fuzzer:
        try:
            said, errors = fuzzer.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            fuzzer.terminate()  # it stops its servers and pipelines
            raise
    if "histories," not in said:
        raise RuntimeError(f"the fuzzer did not run: {errors[-500:]}")
    return {number: f"{end} {code}".strip() for number, end, code in _ENDED.findall(said)}


def find(tree: Tree, defect: Mutant, begin: int) -> str:
    """Return which history shows a planted defect, and how; empty if none does.

    A history shows it if it ends differently when it is played again without the defect. The
    histories of a seed show it if a pipeline stands still, and does not without the defect.
    """
    flags = defect.tests.split()
    for turn in range(-(-HISTORIES_MAX // AT_ONCE)):
        seed = begin + turn
        try:
            with tree.plant(defect):
                ends = read_ends(tree.folder, flags, seed)
        except subprocess.TimeoutExpired:
            read_ends(tree.folder, flags, seed)
            return f"within {AT_ONCE * (turn + 1)} histories: those of seed {seed} do not end"
        for number, end in ends.items():
            if read_ends(tree.folder, [*flags, "--only", number], seed).get(number) != end:
                return f"within {AT_ONCE * (turn + 1)} histories: {number} {end}"
    return ""


def main() -> int:
    """Plant all defects, or those whose names have one of the given words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen = [
        one
        for one in read_mutants([DEFECTS])
        if not options.words or any(word in one.name for word in options.words)
    ]
    found = 0
    with tempfile.TemporaryDirectory(prefix="penstock-defects-") as folder:
        tree = Tree(Path(folder))
        for one in chosen:
            shown = find(tree, one, options.seed)
            found += bool(shown)
            say(f"{'found' if shown else 'NOT FOUND'}: {one.name} ({one.tests}) {shown}")
    say(f"{found} of {len(chosen)} defects found within {HISTORIES_MAX} histories each")
    return int(found < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
