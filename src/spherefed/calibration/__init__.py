"""Calibrations: what a client measures, how the server adds it up, and the head it solves from the sum.

Every calibration is a frozen dataclass with three methods:

    measure(model, batches)       on the client: its moments, as tensors
    merge(total, part, context)   on the server, in ascending client id; a part that cannot be true is refused
    solve(total, context)         on the server: a `Solved` head and how it was had
"""

from spherefed.calibration.ccvr import Ccvr
from spherefed.calibration.context import Context, Fact, Solved
from spherefed.calibration.ffc import Ffc
from spherefed.calibration.gcv import FfcGcv
from spherefed.calibration.oracle import Oracle

Calibration = Ffc | FfcGcv | Ccvr | Oracle

__all__ = ["Calibration", "Ccvr", "Context", "Fact", "Ffc", "FfcGcv", "Oracle", "Solved"]
