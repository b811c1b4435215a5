"""Prototypes, the rows of a head: functions from (classes C, dimension l, stream) to a C×l float64 matrix."""

import numpy as np
import torch
from torch import Tensor

from spherefed.errors import ConfigError
from spherefed.tensors import one_thread


def uniform(num_classes: int, dim: int, rng: np.random.Generator) -> Tensor:
    """The initialization of torch.nn.Linear (He): U(−1/√l, 1/√l); rows do not have unit norm."""
    bound = dim**-0.5
    return torch.from_numpy(rng.uniform(-bound, bound, size=(num_classes, dim)))


def orthonormal(num_classes: int, dim: int, rng: np.random.Generator) -> Tensor:
    """Rows with W Wᵀ = I (SphereFed, Eq. 4), uniformly distributed over all such matrices; needs C ≤ l.

    Uses Householder QR in float64, because classical Gram–Schmidt loses orthogonality.
    """
    if num_classes > dim:
        alternative = "head='etf' or head='tammes'" if num_classes == dim + 1 else "head='tammes'"
        raise ConfigError(
            f"head 'orthonormal' needs feature dimension >= classes, got {dim} < {num_classes}; "
            f"use a wider encoder or {alternative}"
        )
    q_lC, r_CC = np.linalg.qr(rng.standard_normal((dim, num_classes)))
    # The signs of R's diagonal differ between LAPACK libraries; fixing them makes Q unique (and Haar distributed).
    return torch.from_numpy(np.ascontiguousarray((q_lC * np.sign(np.diag(r_CC))).T))


def simplex(num_classes: int, dim: int, rng: np.random.Generator) -> Tensor:
    """Rows of a simplex equiangular tight frame: all cosines are −1/(C−1), the smallest possible maximum; C ≤ l+1.

    The rows of H·√(C/(C−1)), where the columns of H are an orthonormal basis of the vectors orthogonal to (1, …, 1):
    H Hᵀ = I − 11ᵀ/C. They have C−1 dimensions; a random orthonormal frame maps them to l dimensions.
    """
    if num_classes > dim + 1:
        raise ConfigError(
            f"head 'etf' needs feature dimension >= classes - 1, got {dim} < {num_classes - 1}; "
            "use a wider encoder or head='tammes'"
        )
    if num_classes == 1:
        return orthonormal(1, dim, rng)
    # Helmert's basis: column k is (1, …, 1, −k, 0, …, 0)/√(k(k+1)), with k ones.
    k = np.arange(1, num_classes, dtype=np.float64)
    columns = np.triu(np.ones((num_classes, num_classes - 1)))
    columns[np.arange(1, num_classes), np.arange(num_classes - 1)] = -k
    basis_CC1 = columns / np.sqrt(k * (k + 1)) * np.sqrt(num_classes / (num_classes - 1))
    frame_C1l = orthonormal(num_classes - 1, dim, rng)
    with one_thread():
        return torch.from_numpy(basis_CC1) @ frame_C1l


def tammes(
    num_classes: int, dim: int, rng: np.random.Generator, *, steps: int = 10_000, lr: float = 0.1, momentum: float = 0.9
) -> Tensor:
    """Unit rows that minimize 1/C Σ_i max_{j≠i} cos(w_i, w_j) (Mettes et al. 2019); any C and l.

    SGD with momentum on the sphere: rows are normalized after every step. A step only adds multiples of rows to rows,
    so the rows stay in the span of the initial rows. If C < l, the search therefore uses C-dimensional coordinates in
    that span.
    """
    start = torch.from_numpy(rng.standard_normal((num_classes, dim)))
    with one_thread():
        start = torch.nn.functional.normalize(start, dim=1)
        if num_classes == 1:
            return start
        if num_classes >= dim:
            return _minimize_cosines(start, steps, lr, momentum)
        frame_lC, inner_CC = np.linalg.qr(start.numpy().T)  # start = innerᵀ frameᵀ
        inner = torch.from_numpy(np.ascontiguousarray(inner_CC.T))
        rows = _minimize_cosines(inner, steps, lr, momentum) @ torch.from_numpy(np.ascontiguousarray(frame_lC.T))
        return torch.nn.functional.normalize(rows, dim=1)


def coherence(weight_Cl: Tensor) -> float:
    """The largest cosine between two different rows: 0 for orthonormal rows, at least −1/(C−1) for any rows."""
    unit = torch.nn.functional.normalize(weight_Cl.double(), dim=1)
    cosines = unit @ unit.T
    cosines.fill_diagonal_(-torch.inf)
    return float(cosines.max())


def _minimize_cosines(rows_Cd: Tensor, steps: int, lr: float, momentum: float) -> Tensor:
    """The best rows of all steps: with a constant learning rate, SGD oscillates around the optimum.

    The gradient is written out: if j(i) is the nearest other row of i, ∂/∂w_i = 1/C (w_j(i) + Σ_{k: j(k)=i} w_k).
    """
    # Deviation: the published code of Mettes et al. creates a new optimizer after every step, so its momentum has no
    # effect; here it has, as both papers say.
    num_classes = len(rows_Cd)
    best, best_objective = rows_Cd, torch.inf
    velocity = torch.zeros_like(rows_Cd)
    for _ in range(steps + 1):
        cosines_CC = rows_Cd @ rows_Cd.T
        cosines_CC.fill_diagonal_(-2.0)
        largest, nearest = cosines_CC.max(dim=1)
        objective = float(largest.mean())
        if objective < best_objective:
            best, best_objective = rows_Cd, objective
        gradient = rows_Cd[nearest].index_add_(0, nearest, rows_Cd)
        velocity = velocity.mul_(momentum).add_(gradient, alpha=1 / num_classes)
        rows_Cd = torch.add(rows_Cd, velocity, alpha=-lr)
        rows_Cd /= torch.linalg.vector_norm(rows_Cd, dim=1, keepdim=True)
    return best
