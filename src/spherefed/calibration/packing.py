"""Symmetric matrices packed as their upper triangle, row by row, which needs half the bytes."""

import torch
from torch import Tensor


def packed_size(dim: int) -> int:
    """Number of elements in the upper triangle of an l×l matrix, including the diagonal.

    >>> packed_size(1280)
    819840
    """
    return dim * (dim + 1) // 2


def upper_mask(dim: int, device: torch.device) -> Tensor:
    """(l, l) boolean mask of the upper triangle; indexing with it gives the elements row by row."""
    return torch.ones(dim, dim, dtype=torch.bool, device=device).triu()


def diagonal_positions(dim: int, device: torch.device) -> Tensor:
    """Indices of the diagonal elements in a packed triangle."""
    rows = torch.arange(dim, device=device)
    return rows * dim - rows * (rows - 1) // 2


def unpack_triangle(triangle: Tensor, dim: int) -> Tensor:
    """The full symmetric matrix.

    >>> unpack_triangle(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    full = torch.zeros(dim, dim, dtype=triangle.dtype, device=triangle.device)
    upper = upper_mask(dim, triangle.device)
    full[upper] = triangle
    full.T[upper] = triangle  # the lower triangle, without copies of the matrix
    return full
