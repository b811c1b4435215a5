"""Fixtures for the tests of commands."""

from pathlib import Path

import pytest

from spherefed.deployment.folder import init


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "d", ["north", "south"], address="fl.example.org", port=9443)
    return tmp_path / "d"
