"""Symmetric matrices packed as their upper triangle, row by row, which needs half the bytes."""

import torch
from torch import Tensor

BLOCK_ROWS = 256
"""Rows that are mirrored at a time."""


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
    return torch.cat([full.new_empty(0), *(row[number:] for number, row in enumerate(full))])


def unpack_triangle(triangle: Tensor, dim: int) -> Tensor:
    """The full symmetric matrix.

    >>> unpack_triangle(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    full = torch.empty(dim, dim, dtype=triangle.dtype, device=triangle.device)
    for number, row in enumerate(torch.split(triangle, [*range(dim, 0, -1)])):
        full[number, number:] = row
    for top in range(0, dim, BLOCK_ROWS):
        rows = slice(top, top + BLOCK_ROWS)
        full[rows, :top] = full[:top, rows].T
        full[rows, rows] = full[rows, rows].triu() + full[rows, rows].triu(1).T
    return full
