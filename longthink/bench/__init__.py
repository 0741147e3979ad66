"""Benchmarks: what is slow and true beside what is fast, timed in one run."""
