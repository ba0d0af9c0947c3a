"""``python -m holdfast.cli``."""

from holdfast.cli import main

main(prog_name="holdfast")
