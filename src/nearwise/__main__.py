"""Entry point of ``python -m nearwise``, the same as ``nearwise``."""

from nearwise.cli import main

main()
