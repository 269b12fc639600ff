"""Entry point of ``python -m nearwise.cli``, the same as ``nearwise``."""

from nearwise.cli import main

main()
