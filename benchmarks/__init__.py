"""What Holdfast costs, measured beside the bare database in the same run: ``python -m benchmarks``."""
