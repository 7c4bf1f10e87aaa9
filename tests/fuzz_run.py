"""A run of a fuzzer: kernels under AddressSanitizer if possible, a growing pool, failed inputs.

`fuzz_pgoutput.py`, `fuzz_binlog.py` and `fuzz_ignite.py` define the inputs and what is done with
them. The run starts itself once more with the sanitizer loaded; a difference, a crash or a bad
memory access ends that process, and the input is left in build/fuzz/.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "fuzz"
COMPILE_FLAGS = (
    "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
)
CHILD = "PENSTOCK_FUZZ_CHILD"
SEED_SHARE = 0.2  # of inputs that are not mutated from known ones
INTERESTING = [0, 1, 2, 3, 4, 5, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1]


class Inputs(Protocol):
    """A maker of inputs.

    Attributes:
        dice: Random numbers that decide everything.
    """

    dice: random.Random

    def seed_input(self) -> bytes:
        """Return a fresh input."""
        ...

    def mutate(self, data: bytes, /) -> bytes:
        """Return an input that is mutated from a known one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fuzzer:
    """A fuzzer of one kind of input.

    Attributes:
        name: Name of its corpus.
        kernels: Modules of extensions.
        begin: Imports what it needs, as the kernels have to be in place before. Returns the maker
            of a seed's inputs and a function that takes an input: it raises AssertionError on a
            difference, and returns the kind of the input's behaviour (two inputs of one kind cover
            the same code).
        pool_max: Largest number of inputs that are mutated further.
        kept_max: Largest number of inputs that --keep writes.
        kept_bytes_max: Size in bytes below which --keep writes an input.
    """

    name: str
    kernels: tuple[str, ...]
    begin: Callable[[int], tuple[Inputs, Callable[[bytes], Any]]]
    pool_max: int
    kept_max: int
    kept_bytes_max: int

    @property
    def corpus(self) -> Path:
        """Folder of its corpus, which the property tests replay."""
        return ROOT / "tests" / "property" / "corpus" / self.name

    @property
    def current(self) -> Path:
        """File of the input that is tried now."""
        return WORK / f"current-{self.name}.bin"


def exact_block(data: bytes) -> memoryview:
    """Return the bytes in an allocation of exactly their size, so that any read past it is seen."""
    block = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    return memoryview(block).cast("B")


# --- the sanitized build


def sanitizer_library() -> str:
    """Return the path of gcc's AddressSanitizer runtime; empty without one."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return ""
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return found if Path(found).is_absolute() else ""


def build_sanitized() -> Path:
    """Compile the kernels with sanitizers into a folder below build/fuzz, and return the folder."""
    environment = os.environ | {
        "PENSTOCK_REQUIRE_KERNEL": "1",
        "PENSTOCK_CFLAGS": COMPILE_FLAGS,
        "PENSTOCK_LDFLAGS": "-fsanitize=address,undefined",
    }
    folder = WORK / "lib"
    # Everything in these folders has these flags; what matches its sources is not compiled again.
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    command += ["--build-lib", str(folder), "--build-temp", str(WORK / "temp")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


def load_kernel(folder: Path, name: str) -> None:
    """Make `penstock` import a sanitized extension."""
    *parents, kernel = name.split(".")
    path = next((folder / Path(*parents)).glob(f"{kernel}.*.so"), None)
    if path is None:
        raise SystemExit(f"no {name} below {folder}")
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


# --- the run


def fuzz(fuzzer: Fuzzer, seconds: float, seed: int, keep: bool) -> dict[str, Any]:
    """Run until the time is up. Raises AssertionError on the first difference."""
    inputs, tried = fuzzer.begin(seed)
    pool = [path.read_bytes() for path in sorted(fuzzer.corpus.glob("*.bin"))]
    known: set[Any] = set()
    end = time.monotonic() + seconds
    count, kept = 0, len(pool)
    backlog = list(pool)
    while time.monotonic() < end:
        if backlog:
            data = backlog.pop()
        elif not pool or inputs.dice.random() < SEED_SHARE:
            data = inputs.seed_input()
        else:
            data = inputs.mutate(inputs.dice.choice(pool))
        fuzzer.current.write_bytes(data)
        seen = tried(data)
        count += 1
        if seen in known:
            continue
        known.add(seen)
        if data not in pool and len(pool) < fuzzer.pool_max:
            pool.append(data)
            if keep and len(data) < fuzzer.kept_bytes_max and kept < fuzzer.kept_max:
                kept += 1
                name = hashlib.sha256(data).hexdigest()[:16]
                (fuzzer.corpus / f"{name}.bin").write_bytes(data)
    fuzzer.current.unlink(missing_ok=True)
    return {"inputs": count, "behaviours": len(known), "corpus": len(pool)}


def parse_time(text: str) -> float:
    """Return the seconds of a duration such as `90`, `90s`, `10m` or `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a duration: {text}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _parent(fuzzer: Fuzzer, seed: int) -> int:
    """Build, start the child with the sanitizer loaded, and keep the input that it died on."""
    WORK.mkdir(parents=True, exist_ok=True)
    fuzzer.corpus.mkdir(parents=True, exist_ok=True)
    fuzzer.current.unlink(missing_ok=True)
    library = sanitizer_library()
    environment = os.environ | {CHILD: "-", "PYTHONMALLOC": "malloc"}
    if library:
        environment |= {
            CHILD: str(build_sanitized()),
            "LD_PRELOAD": library,
            # The interpreter itself leaks at exit, and may start programs.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
    if done.returncode:
        name = "nothing: it failed before the first input"
        if fuzzer.current.exists():
            digest = hashlib.sha256(fuzzer.current.read_bytes()).hexdigest()[:16]
            name = str(fuzzer.current.rename(WORK / f"failed-{digest}.bin"))
        sys.stderr.write(f"failed with seed {seed}; the input is {name}\n")
    return 1 if done.returncode else 0


def _child(fuzzer: Fuzzer, arguments: argparse.Namespace, folder: str) -> int:
    """Fuzz in this process."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    if folder != "-":
        for kernel in fuzzer.kernels:
            load_kernel(Path(folder), kernel)
    result = fuzz(fuzzer, arguments.time, arguments.seed, arguments.keep)
    line = {"fuzz": fuzzer.name, "sanitizers": folder != "-", "seed": arguments.seed} | result
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def main(fuzzer: Fuzzer, description: str | None) -> int:
    """Read the arguments, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--for", dest="time", type=parse_time, default=60.0, help="90, 90s, 10m or 1h"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", action="store_true", help="write new inputs to the corpus")
    arguments = parser.parse_args()
    if CHILD not in os.environ:
        sys.argv += ["--seed", str(arguments.seed)]
        return _parent(fuzzer, arguments.seed)
    return _child(fuzzer, arguments, os.environ[CHILD])
