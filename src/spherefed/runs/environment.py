"""What a result was computed with: versions, commit, machine, when it started."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from spherefed.components import describe_components
from spherefed.experiment import Experiment
from spherefed.nn.encoders import structure_digest

NUMERICS_VERSION = 2
"""Raised whenever the same experiment gives other results: runs of different versions are not mixed."""
_PACKAGES = ("spherefed", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe_environment(
    experiment: Experiment, *, engine: str, device: str, workers: int, encoder: nn.Module | None = None
) -> dict[str, Any]:
    """What the result was computed with; `encoder` is the module that the caller passed."""
    commit, own = _commit(), experiment.own_components()
    return {
        **{name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": commit,
        "seed": experiment.seed,
        "engine": engine,
        "device": device,
        "workers": workers,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "experiment_digest": experiment.digest(),
        "numerics_version": NUMERICS_VERSION,
        "digests": "sha256",
        **({"components": describe_components(own)} if own else {}),
        **({} if encoder is None else {"encoder_structure": structure_digest(encoder)}),
    }


def _commit() -> str | None:
    """The commit of the source tree this package is run from, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
