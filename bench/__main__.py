"""Run every benchmark, each in a process of its own: `python -m bench [--quick]`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Run them in turn; return the number of those that failed."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    failed = []
    for name in names:
        started = time.monotonic()
        print(f"== {name}", flush=True)
        if subprocess.call([sys.executable, "-m", f"bench.{name}", *sys.argv[1:]]) != 0:
            failed.append(name)
        print(f"== {name} took {time.monotonic() - started:.0f} s\n", flush=True)
    for name in failed:
        print(f"failed: {name}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
