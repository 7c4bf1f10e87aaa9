"""Feed mutated bytes of Ignite nodes to both readers, the kernels under AddressSanitizer.

`python tests/fuzz_ignite.py --for 10m [--seed 1] [--keep]`. Twin and kernel must treat every input
alike; any difference, crash, bad memory access or value that outgrows its bytes ends the run with
exit code 1 and leaves the input in build/fuzz/. Inputs are marshalled values, segments (with
corrected checksums, so that changes reach the decoders), files of binary_meta, and values that are
read into columns. Inputs that show new behaviour are mutated further; --keep writes them into
tests/property/corpus/ignite, which the property tests replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fuzz_run


def begin(seed: int) -> tuple[fuzz_run.Inputs, Callable[[bytes], Any]]:
    """Return the maker of inputs, and the function that compares both readers on an input."""
    from harness.ignite.draw import Mutator
    from harness.ignite.twins import assert_same

    return Mutator(seed), lambda data: assert_same(data, fuzz_run.exact_block)


FUZZER = fuzz_run.Fuzzer(
    name="ignite",
    kernels=("penstock.codec.ignite._marshal", "penstock.codec.ignite._wal"),
    begin=begin,
    pool_max=600,
    kept_max=120,
    kept_bytes_max=900,
)

if __name__ == "__main__":
    raise SystemExit(fuzz_run.main(FUZZER, __doc__))
