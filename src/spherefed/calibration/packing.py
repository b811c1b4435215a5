"""Symmetric matrices as their upper triangle, row by row: half the bytes, and symmetric by construction."""

import torch
from torch import Tensor


def packed_size(dim: int) -> int:
    """Numbers in the upper triangle of an l×l matrix, diagonal included.

    >>> packed_size(1280)
    819840
    """
    return dim * (dim + 1) // 2


def upper(dim: int, device: torch.device) -> Tensor:
    """(l, l) mask of the upper triangle; picking by it goes row by row."""
    return torch.ones(dim, dim, dtype=torch.bool, device=device).triu()


def diagonal_positions(dim: int, device: torch.device) -> Tensor:
    """Where the diagonal lies in a packed triangle."""
    rows = torch.arange(dim, device=device)
    return rows * dim - rows * (rows - 1) // 2


def unpacked(triangle: Tensor, dim: int) -> Tensor:
    """The whole symmetric matrix.

    >>> unpacked(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    full = torch.zeros(dim, dim, dtype=triangle.dtype, device=triangle.device)
    full[upper(dim, triangle.device)] = triangle
    return full + full.triu(1).T
