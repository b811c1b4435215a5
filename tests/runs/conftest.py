"""Fixtures for the tests of runs."""

from pathlib import Path

import pytest

from spherefed.experiment import Data, Experiment
from spherefed.server.algorithms import Algorithm
from spherefed.server.optimizers import ServerSgd
from support.small import blobs, save_arrays, tiny


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """With a server optimizer that keeps state."""
    return tiny(
        data=Data(name=save_arrays(tmp_path / "data.npz", blobs())),
        algorithm=Algorithm(server=ServerSgd(momentum=0.5)),
    )
