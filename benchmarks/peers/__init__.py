"""Peers measured next to Holdfast in the same run: ``python -m benchmarks.peers``. See docs/benchmarks.md."""
