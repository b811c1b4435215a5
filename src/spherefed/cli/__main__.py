"""`python -m spherefed.cli`."""

from spherefed.cli import main

main()
