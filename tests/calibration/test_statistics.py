"""Packed triangles against numpy's own indices of the upper triangle."""

import numpy as np
import pytest
import torch

from spherefed.calibration.statistics import diagonal_positions, pack_triangle, packed_size, unpack_triangle

CPU = torch.device("cpu")


@pytest.mark.parametrize("block", [1, 3, 8, 256])
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 11])
def test_a_packed_triangle_is_numpys_upper_triangle_row_by_row(
    dim: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spherefed.calibration.statistics.MIRRORED_ROWS", block)
    whole = np.random.default_rng(dim).integers(-99, 99, size=(dim, dim))
    whole = whole + whole.T
    rows, columns = np.triu_indices(dim)
    packed = pack_triangle(torch.from_numpy(whole))
    assert packed.tolist() == whole[rows, columns].tolist()
    assert len(packed) == packed_size(dim)
    assert unpack_triangle(packed, dim).tolist() == whole.tolist()
    assert packed[diagonal_positions(dim, CPU)].tolist() == np.diag(whole).tolist()


def test_unpacking_keeps_large_integers_exact() -> None:
    triangle = torch.tensor([2**62 + 1, 2**61 + 3, 5])
    assert unpack_triangle(triangle, 2).tolist() == [[2**62 + 1, 2**61 + 3], [2**61 + 3, 5]]
