"""Records of `spherefed reproduce` that no training made."""

from spherefed.runs.environment import NUMERICS_VERSION


def made_up_record(trained: float, calibrated: float) -> dict[str, object]:
    """A record with these accuracies and nothing else."""
    return {
        "accuracy": {"trained": trained, "calibrated": calibrated},
        "personal": None,
        "curves": {},
        "seconds": {"train": 60.0},
        "machine": "somewhere",
        "torch": "2",
        "numerics_version": NUMERICS_VERSION,
    }
