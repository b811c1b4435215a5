"""Bytes of the classifier per client over a whole run (Table 1), as the paper counts them and as our messages are.

The paper counts dense matrices of 32-bit numbers. Ours send symmetric matrices packed and in 64 bits: integers for FFC,
which are exact, and floats for CCVR, of only the classes a client holds. Encoder and scalars are the same for all
methods and not counted.
"""

from spherefed.calibration.packing import packed_size
from spherefed.costs.setting import Setting


def fedavg_bytes(setting: Setting) -> int:
    """The head down and up in every round: 2 · T · 4 l C.

    >>> from spherefed.costs.setting import TABLE_1
    >>> fedavg_bytes(TABLE_1) / 1e6
    102.4
    """
    return 2 * setting.rounds * 4 * setting.dim * setting.num_classes


def ccvr_bytes(setting: Setting) -> int:
    """FedAvg's, and once a mean and a covariance of every class: 4 (l C + l² C) more."""
    dim, C = setting.dim, setting.num_classes
    return fedavg_bytes(setting) + 4 * (dim * C + dim**2 * C)


def ffc_bytes(setting: Setting) -> int:
    """SphereFed: the head never travels; V and U do, once: 4 (l² + l C)."""
    return 4 * (setting.dim**2 + setting.dim * setting.num_classes)


def ffc_packed_bytes(setting: Setting, *, bytes_per_number: int = 8) -> int:
    """V as its upper triangle, and U: in int64 what our statistics are; with 4 what they would be in 32 bits."""
    return bytes_per_number * (packed_size(setting.dim) + setting.dim * setting.num_classes)


def ccvr_packed_bytes(setting: Setting, *, num_held: int | None = None) -> int:
    """FedAvg's, and once our moments in 64 bits: class, n, Σz and the triangle of Σzzᵀ of each class a client holds."""
    held = setting.num_classes if num_held is None else num_held
    return fedavg_bytes(setting) + 8 * held * (2 + setting.dim + packed_size(setting.dim))
