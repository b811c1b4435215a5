"""Symmetric matrices packed as their upper triangle, row by row, which needs half the bytes."""

from collections.abc import Iterator

import torch
from torch import Tensor

STRIPE_NUMBERS = 2**20
"""A matrix is packed and unpacked in stripes of about so many numbers: an index by a mask takes 16 bytes for each."""


def packed_size(dim: int) -> int:
    """Number of elements in the upper triangle of an l×l matrix, including the diagonal.

    >>> packed_size(1280)
    819840
    """
    return dim * (dim + 1) // 2


def diagonal_positions(dim: int, device: torch.device) -> Tensor:
    """Indices of the diagonal elements in a packed triangle."""
    rows = torch.arange(dim, device=device)
    return rows * dim - rows * (rows - 1) // 2


def pack_triangle(full: Tensor) -> Tensor:
    """The upper triangle of a matrix.

    >>> pack_triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    triangle = torch.empty(packed_size(len(full)), dtype=full.dtype, device=full.device)
    for rows, packed, mask in _stripes(len(full), full.device):
        triangle[packed] = full[rows][mask]
    return triangle


def unpack_triangle(triangle: Tensor, dim: int) -> Tensor:
    """The full symmetric matrix.

    >>> unpack_triangle(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    full = torch.empty(dim, dim, dtype=triangle.dtype, device=triangle.device)
    for rows, packed, mask in _stripes(dim, triangle.device):
        full[rows][mask] = triangle[packed]
        full.T[rows][mask] = triangle[packed]  # the lower triangle, without copies of the matrix
    return full


def _stripes(dim: int, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows of the matrix, their place in the packed triangle, and the mask of the upper triangle in these rows."""
    height = max(1, STRIPE_NUMBERS // max(dim, 1))
    start = 0
    for top in range(0, dim, height):
        mask = torch.ones(min(height, dim - top), dim, dtype=torch.bool, device=device).triu_(top)
        stop = start + len(mask) * (dim - top) - len(mask) * (len(mask) - 1) // 2
        yield slice(top, top + len(mask)), slice(start, stop), mask
        start = stop
