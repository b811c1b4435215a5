"""The solve of Eq. 12 on matrices made by hand; `test_ffc.py` has it on statistics of features."""

import numpy as np
import pytest
import torch
from torch import Tensor

from spherefed.calibration.solution import eigh_in_place, solve
from spherefed.errors import CalibrationError

DIM, CLASSES = 6, 3


def system(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
    """Rows Z and targets Y, and with them V = ZᵀZ and U = ZᵀY."""
    rng = np.random.default_rng(seed)
    rows, targets = rng.normal(size=(num_rows, DIM)), rng.normal(size=(num_rows, CLASSES))
    return rows, targets, torch.from_numpy(rows.T @ rows), torch.from_numpy(rows.T @ targets)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("num_rows", [3, 20])
def test_a_solution_is_least_squares_on_rows_with_the_ridge_appended(num_rows: int, ridge: float) -> None:
    rows, targets, gram, cross = system(num_rows)
    augmented = np.vstack([rows, np.sqrt(ridge) * np.eye(DIM)])
    expected, *_ = np.linalg.lstsq(augmented, np.vstack([targets, np.zeros((DIM, CLASSES))]), rcond=1e-10)
    found = solve(gram, cross, ridge)
    assert found.weight.shape == (CLASSES, DIM)
    assert np.allclose(found.weight.T.numpy(), expected, atol=1e-8)
    singular = num_rows < DIM and ridge == 0
    assert (found.path, found.rank) == (("eigh", num_rows) if singular else ("cholesky", DIM))
    assert found.dropped == DIM - found.rank
    assert found.ridge == ridge


def test_the_condition_number_is_numpys() -> None:
    _, _, gram, cross = system(20)
    assert solve(gram, cross, 0.0).rcond == pytest.approx(1 / np.linalg.cond(gram.numpy(), 1), rel=1e-9)


def test_the_summary_has_everything_but_the_weight() -> None:
    _, _, gram, cross = system(20)
    found = solve(gram, cross, 0.5)
    assert found.summary() == {
        "path": "cholesky",
        "rcond": found.rcond,
        "rank": DIM,
        "dropped": 0,
        "ridge": 0.5,
    }


@pytest.mark.parametrize("ridge", [-1e-9, float("inf"), float("nan")])
def test_an_impossible_ridge_is_refused(ridge: float) -> None:
    _, _, gram, cross = system(20)
    with pytest.raises(CalibrationError, match="ridge must be"):
        solve(gram, cross, ridge)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_a_matrix_that_no_features_have_is_refused(scale: float) -> None:
    _, _, gram, cross = system(20)
    with pytest.raises(CalibrationError, match="not a Gram matrix"):
        solve(scale * gram, cross, 0.0)


@pytest.mark.parametrize("dim", [1, 2, 7, 130])
def test_eigenvectors_in_place_have_the_bits_of_torch(dim: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(dim).normal(size=(2 * dim, dim)))
    matrix = rows.T @ rows
    matrix = matrix + matrix.T  # symmetric to the bit
    expected = torch.linalg.eigh(matrix)
    values, vectors = eigh_in_place(matrix)
    assert torch.equal(values, expected.eigenvalues)
    assert torch.equal(vectors, expected.eigenvectors)
    assert vectors.data_ptr() == matrix.data_ptr()
