"""Jars of a project file of Maven, copied once into a folder below `build`."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_jars(name: str) -> list[Path]:
    """Return the jars of `tests/NAME/pom.xml`; Maven gets them the first time.

    Each has the checksum that `tests/data/NAME/jars.sha256` has.
    """
    folder = ROOT / "build" / name
    sums = (ROOT / "tests/data" / name / "jars.sha256").read_text()
    wanted = dict(line.split()[::-1] for line in sums.splitlines())
    if not all((folder / jar).exists() for jar in wanted):
        copy = ["mvn", "-q", "-B", "-f", str(ROOT / "tests" / name / "pom.xml")]
        copy += ["dependency:copy-dependencies"]
        copy += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        subprocess.run(copy, check=True)
    for jar, sum_ in wanted.items():
        actual = hashlib.sha256((folder / jar).read_bytes()).hexdigest()
        assert actual == sum_, f"{jar} has the sha256 {actual}, expected {sum_}"
    return [folder / jar for jar in wanted]
