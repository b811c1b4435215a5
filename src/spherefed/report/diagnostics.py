"""Diagnostics of a finished run, from `diagnostics.safetensors`: counts by true and predicted class, the spectrum of V.

Runs write the file when they finish; runs of earlier versions have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spherefed.errors import RunError
from spherefed.runs.finish import CONFUSION, DIAGNOSTICS, SPECTRUM

Matrix = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Diagnostics:
    """What a run recorded once, at its end."""

    confusion: Mapping[str, Matrix] = field(default_factory=dict)
    """Stage → (C, C) counts on the test set: rows are true classes, columns are predictions."""
    spectrum: Matrix | None = None
    """The eigenvalues of V, ascending."""


def read_diagnostics(run: Path) -> Diagnostics:
    """The diagnostics of a run directory; empty if there are none."""
    from safetensors import SafetensorError, safe_open

    path = run / DIAGNOSTICS
    if not path.exists():
        return Diagnostics()
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    counts = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{CONFUSION}.")}
    confusion = {name.removeprefix(f"{CONFUSION}."): tensor for name, tensor in counts.items() if tensor.ndim == 2}
    return Diagnostics(confusion, tensors.get(SPECTRUM))
