"""Calibrations: clients measure moments, the server sums them and computes a new head from the sum.

Every calibration is a frozen dataclass with five methods:

    measure(model, batches)       on the client: returns its moments as tensors
    merge(total, part, context)   on the server, in ascending client id; raises CalibrationError for an invalid part
    num_examples(part)            on the server: how many examples a part claims; their sum is at most `capacity`
    max_bytes(head, max_examples) on the server: most bytes of a part; larger replies are not decoded
    solve(total, context)         on the server: returns a `Solved` head with a summary of the solution
"""

from spherefed.calibration.balanced import BalancedFfc
from spherefed.calibration.ccvr import Ccvr
from spherefed.calibration.context import Context, OwnCalibration, Solved, SummaryValue
from spherefed.calibration.fedcof import FedCof
from spherefed.calibration.ffc import Ffc
from spherefed.calibration.gcv import FfcGcv
from spherefed.calibration.lda import Lda
from spherefed.calibration.ncm import Ncm
from spherefed.calibration.oracle import Oracle

Calibration = Ffc | FfcGcv | BalancedFfc | Ncm | Lda | FedCof | Ccvr | Oracle | OwnCalibration

__all__ = [
    "BalancedFfc",
    "Calibration",
    "Ccvr",
    "Context",
    "FedCof",
    "Ffc",
    "FfcGcv",
    "Lda",
    "Ncm",
    "Oracle",
    "OwnCalibration",
    "Solved",
    "SummaryValue",
]
