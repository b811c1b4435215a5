"""Statistics that no examples can have are refused; those of honest clients, however odd, always pass."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spherefed.calibration import Ccvr, Context, Ffc, FfcGcv
from spherefed.calibration.ccvr import moments
from spherefed.calibration.ffc import FEATURE_BITS, Accumulator, Statistics, statistics
from spherefed.calibration.statistics import diagonal_positions
from spherefed.errors import CalibrationError
from spherefed.nn.classifier import hyperspherical

KINDS = ("dense", "relu", "equal rows", "one-hot", "zero", "mostly zero", "bottleneck", "tiny", "huge", "corner")


def rows_of(kind: str, rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
    rows = rng.normal(size=(num, dim))
    return {
        "dense": rows,
        "relu": np.maximum(rows, 0),
        "equal rows": 0 * rows + rng.normal(size=dim),
        "one-hot": np.eye(dim)[rng.integers(dim, size=num)],
        "zero": 0 * rows,
        "mostly zero": rows * (rng.random((num, dim)) < 0.1),
        "bottleneck": rows[:, :1] * rng.normal(size=dim),
        "tiny": rows * 1e-30,
        "huge": rows * 1e30,
        "corner": np.ones((num, dim)),
    }[kind]


def context(num_classes: int, dim: int) -> Context:
    return Context(head=torch.zeros(num_classes, dim), seed=0, round=0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.sampled_from(KINDS), st.integers(0, 60), st.integers(1, 40), st.integers(1, 5), st.booleans(), st.integers(0, 99)
)
@pytest.mark.slow
def test_honest_clients_pass(kind: str, num: int, dim: int, num_classes: int, one_class: bool, seed: int) -> None:
    """No example, one example, fewer examples than features, one class, zero features."""
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rows_of(kind, rng, num, dim))
    labels = torch.from_numpy(rng.integers(1 if one_class else num_classes, size=num))
    accumulator = Accumulator(dim, num_classes, torch.device("cpu"))
    accumulator.add(features, labels)
    part = accumulator.total().tensors()
    for calibration in (Ffc(), FfcGcv()):
        assert calibration.merge(None, part, context(num_classes, dim)).keys() == part.keys()
        assert calibration.num_examples(part) == num
    class_moments = moments(features, labels).tensors()
    assert Ccvr().merge(None, class_moments, context(num_classes, dim)).keys() == class_moments.keys()
    assert Ccvr().num_examples(class_moments) == num


def test_many_examples_of_few_directions_pass() -> None:
    """The Gram matrix is exact, but singular, and its float64 copy is rounded."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(40_000, 3)) @ rng.normal(size=(3, 100)))
    labels = torch.from_numpy(rng.integers(5, size=40_000))
    model = hyperspherical(nn.Identity(), num_classes=5, dim=100)
    part = statistics(model, [(features, labels)]).tensors()
    Ffc().merge(None, part, context(5, 100))


def honest() -> Statistics:
    rng = np.random.default_rng(1)
    model = hyperspherical(nn.Identity(), num_classes=3, dim=12)
    rows, labels = torch.from_numpy(np.abs(rng.normal(size=(40, 12)))), torch.from_numpy(rng.integers(3, size=40))
    return statistics(model, [(rows, labels)])


def off_diagonal(change: Callable[[Tensor], Tensor]) -> Statistics:
    true = honest()
    gram = change(true.packed_gram)
    diagonal = diagonal_positions(12, torch.device("cpu"))
    gram[diagonal] = true.packed_gram[diagonal]
    return Statistics(true.num_examples, 0, gram, true.packed_cross)


def with_cross(cross: Tensor) -> Statistics:
    true = honest()
    return Statistics(true.num_examples, 0, true.packed_gram, cross)


FORGERIES = {
    "inflated off-diagonals": lambda: off_diagonal(lambda gram: gram * 2),
    "negated off-diagonals": lambda: off_diagonal(lambda gram: -gram),
    "U = n everywhere": lambda: with_cross(torch.full((12, 3), 40 << FEATURE_BITS)),
    "U twice too large": lambda: with_cross(honest().packed_cross * 2),
    "U of every example in every class": lambda: with_cross(honest().packed_cross.sum(1, keepdim=True).expand(12, 3)),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_statistics_that_are_not_of_examples_are_refused(name: str) -> None:
    part = {n: t.contiguous() for n, t in FORGERIES[name]().tensors().items()}
    Statistics.from_tensors(part)  # sizes and trace alone do not tell
    with pytest.raises(CalibrationError, match=r"not a Gram matrix|does not fit V"):
        Ffc().merge(None, part, context(3, 12))


def test_the_bound_on_u_is_that_of_a_projection() -> None:
    """tr(UᵀV⁺U) = ‖PY‖² by explicit projection; scaled to just above n it is refused, just below accepted."""
    true = honest()
    explained = float(torch.trace(true.cross().T @ torch.linalg.pinv(true.gram()) @ true.cross()))
    for scale, accepted in (((40 / explained) ** 0.5 * 0.999, True), ((40 / explained) ** 0.5 * 1.001, False)):
        part = with_cross((true.packed_cross * scale).to(torch.int64)).tensors()
        if accepted:
            Ffc().merge(None, part, context(3, 12))
        else:
            with pytest.raises(CalibrationError, match="does not fit V"):
                Ffc().merge(None, part, context(3, 12))


def test_a_second_moment_below_the_squared_mean_is_refused() -> None:
    rng = np.random.default_rng(2)
    features, labels = torch.from_numpy(rng.normal(size=(50, 6))), torch.zeros(50, dtype=torch.int64)
    part = dict(moments(features, labels).tensors())
    sums = 0.9 * (50 * features.square().sum(dim=0, keepdim=True)).sqrt()
    assert bool((sums.square() <= 50 * features.square().sum(0)).all()), "entry by entry it is possible"
    with pytest.raises(CalibrationError, match="squared mean"):
        Ccvr().merge(None, part | {"sums": sums}, context(1, 6))
