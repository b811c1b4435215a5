"""Settings for all tests."""

import gc
import os
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("spherefed", deadline=None)
settings.load_profile("spherefed")


def pytest_collection() -> None:
    """Modules and tests stay until the end: the garbage collector need not look through them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


FLUSHES = {"os.fsync": os.fsync, "spherefed.files._flush": getattr(os, "fdatasync", os.fsync)}


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """What takes most of the time of a small run and is not what its test looks at.

    Files that no test changes are read once: the digits, and what is installed in which version. Files are written
    without waiting for the disk, unless a test asks for `flushing`.
    """
    from spherefed import components
    from spherefed.data import arrays
    from spherefed.runs import environment

    read_table = arrays._digits_table

    @cache
    def table() -> object:
        read = read_table()
        read.setflags(write=False)  # whoever makes a data set from it copies it
        return read

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_digits_table", table)
        patch.setattr(components, "packages_distributions", cache(components.packages_distributions))
        patch.setattr(components, "version", cache(components.version))
        patch.setattr(environment, "version", cache(environment.version))
        for name in FLUSHES:
            patch.setattr(name, os.fstat)  # which fails, too, where the file is not open
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without what their figures show, which takes a second to draw: for tests of what else a page says."""
    monkeypatch.setattr(
        "spherefed.report.drawing.Drawing.svg", lambda drawing: f"<svg><title>{drawing.title}</title></svg>"
    )


@pytest.fixture
def flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk, as outside of tests."""
    for name, flush in FLUSHES.items():
        monkeypatch.setattr(name, flush)
