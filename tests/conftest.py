"""Settings for all tests."""

import gc
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


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """What takes most of the time of a small run and is not what its test looks at.

    Files that no test changes are read once: the digits, and what is installed in which version.
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
        yield
