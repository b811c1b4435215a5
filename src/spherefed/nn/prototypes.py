"""Rows of a fixed classifier: functions from (classes C, dimension l, stream) to a C×l float64 matrix."""

import numpy as np
import torch
from torch import Tensor

from spherefed.errors import ConfigError


def uniform(num_classes: int, dim: int, rng: np.random.Generator) -> Tensor:
    """He initialisation as torch.nn.Linear draws it: U(−1/√l, 1/√l); rows are not of unit length."""
    bound = dim**-0.5
    return torch.from_numpy(rng.uniform(-bound, bound, size=(num_classes, dim)))


def orthonormal(num_classes: int, dim: int, rng: np.random.Generator) -> Tensor:
    """Rows with W Wᵀ = I (SphereFed, Eq. 4), uniform over all such matrices; needs C ≤ l.

    By Householder QR in float64: classical Gram–Schmidt loses orthogonality.
    """
    if num_classes > dim:
        raise ConfigError(
            f"head 'orthonormal' needs feature dimension >= classes, got {dim} < {num_classes}; "
            "use a wider encoder or another head"
        )
    q_lC, r_CC = np.linalg.qr(rng.standard_normal((dim, num_classes)))
    # The sign convention of R's diagonal differs between LAPACKs; fixing it makes Q unique (and Haar distributed).
    return torch.from_numpy(np.ascontiguousarray((q_lC * np.sign(np.diag(r_CC))).T))


def coherence(weight_Cl: Tensor) -> float:
    """The largest cosine between two different rows: 0 for orthonormal rows, −1/(C−1) at the very best."""
    unit = torch.nn.functional.normalize(weight_Cl.double(), dim=1)
    cosines = unit @ unit.T
    cosines.fill_diagonal_(-torch.inf)
    return float(cosines.max())
