"""Benchmarks, not tests: every number is compared with a reference from the same run."""
