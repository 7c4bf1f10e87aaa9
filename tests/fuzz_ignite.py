"""Feed mutated bytes of Ignite nodes to both readers, the kernels under AddressSanitizer.

`python tests/fuzz_ignite.py --for 10m [--seed 1] [--keep]`. Twin and kernel must do the same with
every input; any difference, crash, bad memory access or value that outgrows its bytes ends the run
with exit code 1 and leaves the input in build/fuzz/. Inputs are marshalled values, segments (their
checksums set right again, so that changes reach the decoders), files of binary_meta, and values
that are read into columns. Those that show a behaviour not seen before breed further ones; --keep
writes them into tests/property/corpus/ignite, which the property tests replay.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from fuzz_pgoutput import (
    CHILD,
    ROOT,
    WORK,
    build_sanitized,
    exact_block,
    parse_time,
    sanitizer_library,
)

CORPUS = ROOT / "tests" / "property" / "corpus" / "ignite"
KERNELS = ("_marshal", "_wal")
CORPUS_COUNT_MAX = 600
KEPT_COUNT_MAX = 120
KEPT_BYTES_MAX = 900


def load_kernels(folder: str) -> None:
    """Make the sanitized extensions those that `penstock` imports."""
    for kernel in KERNELS:
        name = f"penstock.codec.ignite.{kernel}"
        path = next((WORK / folder).rglob(f"ignite/{kernel}.*.so"), None)
        if path is None:
            raise SystemExit(f"no {kernel} below {folder}")
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        if spec is None or spec.loader is None:
            raise SystemExit(f"cannot load {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def fuzz(seconds: float, seed: int, keep: bool) -> dict[str, Any]:
    """Run until the time is up; raises AssertionError on the first difference."""
    from fix_ignite_draw import Mutator
    from fix_ignite_twins import assert_same

    mutator = Mutator(seed)
    pool = [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    known: set[Any] = set()
    current = WORK / "current-ignite.bin"
    end = time.monotonic() + seconds
    count, kept = 0, len(pool)
    backlog = list(pool)
    while time.monotonic() < end:
        if backlog:
            data = backlog.pop()
        elif not pool or mutator.dice.random() < 0.2:
            data = mutator.seed_input()
        else:
            data = mutator.mutate(mutator.dice.choice(pool))
        current.write_bytes(data)
        seen = assert_same(data, exact_block)
        count += 1
        if seen not in known:
            known.add(seen)
            if data not in pool and len(pool) < CORPUS_COUNT_MAX:
                pool.append(data)
                if keep and len(data) < KEPT_BYTES_MAX and kept < KEPT_COUNT_MAX:
                    kept += 1
                    name = hashlib.sha256(data).hexdigest()[:16]
                    (CORPUS / f"{name}.bin").write_bytes(data)
    current.unlink(missing_ok=True)
    return {"inputs": count, "behaviours": len(known), "corpus": len(pool)}


def parent(arguments: argparse.Namespace) -> int:
    """Build, start the child with the sanitizer loaded, keep the input it died on."""
    WORK.mkdir(parents=True, exist_ok=True)
    CORPUS.mkdir(parents=True, exist_ok=True)
    library = sanitizer_library()
    environment = os.environ | {CHILD: "-", "PYTHONMALLOC": "malloc"}
    if library:
        build_sanitized()
        environment |= {
            CHILD: "lib",
            "LD_PRELOAD": library,
            # The interpreter itself leaks at exit, and may start programs.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
    if done.returncode:
        current = WORK / "current-ignite.bin"
        name = "nothing: it failed before the first input"
        if current.exists():
            digest = hashlib.sha256(current.read_bytes()).hexdigest()[:16]
            name = str(current.rename(WORK / f"failed-{digest}.bin"))
        sys.stderr.write(f"failed with seed {arguments.seed}; the input is {name}\n")
    return 1 if done.returncode else 0


def child(arguments: argparse.Namespace, folder: str) -> int:
    """Fuzz in this process."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    if folder != "-":
        load_kernels(folder)
    result = fuzz(arguments.time, arguments.seed, arguments.keep)
    line = {"fuzz": "ignite", "sanitizers": folder != "-", "seed": arguments.seed} | result
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--for", dest="time", type=parse_time, default=60.0, help="90, 90s, 10m or 1h"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", action="store_true", help="write new inputs to the corpus")
    arguments = parser.parse_args()
    if CHILD not in os.environ:
        sys.argv += ["--seed", str(arguments.seed)]
        return parent(arguments)
    return child(arguments, os.environ[CHILD])


if __name__ == "__main__":
    raise SystemExit(main())
