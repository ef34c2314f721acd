"""How fast the library is, next to the same work done by hand in the same run: `python -m benchmarks`."""
