"""Benchmarks, one module each: `python -m bench.bench_extraction`; `make bench` runs all."""
