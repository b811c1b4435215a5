"""Calibrations: what a client measures, how the server adds it up, and the head it solves from the sum.

Every calibration is a frozen dataclass with `measure` (client), `merge` and `solve` (server).
"""

from spherefed.calibration.ffc import Ffc

Calibration = Ffc

__all__ = ["Calibration", "Ffc"]
