"""The `spherefed` command, called in this process."""

import sys

import pytest

from spherefed.cli import main


def spherefed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the command with these arguments; its exit code."""
    monkeypatch.setattr(sys, "argv", ["spherefed", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
