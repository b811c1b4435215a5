"""Fixtures for the tests of data sets."""

from pathlib import Path

import pytest

from spherefed.data import idx


@pytest.fixture
def no_debian_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without Debian's package of Fashion-MNIST."""
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path / "debian")
