"""``python -m holdfast.cli``."""

from holdfast.cli import main

main()
