"""Benchmarks: one module each, `python -m bench.bench_extraction` and so on; `make bench` for all."""
