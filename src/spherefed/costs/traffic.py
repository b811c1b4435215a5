"""Bytes of the classifier per client over a whole run (Table 1), as the paper counts them and as in our messages.

The paper counts dense matrices of 32-bit numbers. Our messages contain packed symmetric matrices of 64-bit numbers:
exact integers for FFC, and floats for CCVR, only for the classes that a client has. The encoder and scalars are the
same for all methods and are not counted.
"""

from spherefed.calibration.statistics import packed_size
from spherefed.costs.setting import Setting


def fedavg_bytes(setting: Setting) -> int:
    """The head is sent to the client and back in every round: 2 · T · 4 l C.

    >>> from spherefed.costs.setting import TABLE_1
    >>> fedavg_bytes(TABLE_1) / 1e6
    102.4
    """
    return 2 * setting.rounds * 4 * setting.dim * setting.num_classes


def ccvr_bytes(setting: Setting) -> int:
    """FedAvg, plus a mean and a covariance of every class once: 4 (l C + l² C)."""
    dim, C = setting.dim, setting.num_classes
    return fedavg_bytes(setting) + 4 * (dim * C + dim**2 * C)


def ffc_bytes(setting: Setting) -> int:
    """SphereFed: the head is not sent; V and U are sent once: 4 (l² + l C)."""
    return 4 * (setting.dim**2 + setting.dim * setting.num_classes)


def ffc_packed_bytes(setting: Setting, *, bytes_per_number: int = 8) -> int:
    """The upper triangle of V, and U. Our statistics use int64 (8 bytes); use 4 for 32-bit numbers."""
    return bytes_per_number * (packed_size(setting.dim) + setting.dim * setting.num_classes)


def ccvr_packed_bytes(setting: Setting, *, num_client_classes: int | None = None) -> int:
    """FedAvg, plus our 64-bit moments once: class, n, Σz and the triangle of Σzzᵀ for each class that a client has."""
    num_classes = setting.num_classes if num_client_classes is None else num_client_classes
    return fedavg_bytes(setting) + 8 * num_classes * (2 + setting.dim + packed_size(setting.dim))
