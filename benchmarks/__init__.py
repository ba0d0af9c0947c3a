"""What Holdfast costs, measured next to the bare database in the same run: ``python -m benchmarks``."""
