"""Benchmarks, one module each: `python -m bench.bench_extraction`; `make bench` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # servers and fixtures
