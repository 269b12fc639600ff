"""``python -m nearwise.cli`` is ``nearwise``."""

from nearwise.cli import main

main()
