"""`python -m spherefed`."""

from spherefed.cli import main

main()
