"""Eq. 2 and 3 against a double loop, and where they are reported."""

from itertools import permutations

import numpy as np
import pytest
import torch

from spherefed.algorithms import combine
from spherefed.consistency import Consistency
from spherefed.messages import TrainReply


def double_loop(heads: list[np.ndarray]) -> tuple[float, float]:
    """SphereFed, Eq. 2 and 3, term by term over classes and ordered pairs of clients."""
    cosines, differences = [], []
    for one, other in permutations(range(len(heads)), 2):
        for c in range(len(heads[0])):
            w, u = heads[one][c], heads[other][c]
            cosines.append(w @ u / (np.linalg.norm(w) * np.linalg.norm(u)))
            differences.append(abs(np.linalg.norm(w) - np.linalg.norm(u)))
    return float(np.mean(cosines)), float(np.mean(differences))


@pytest.mark.parametrize("num_clients", [2, 3, 9])
def test_consistency_equals_a_double_loop(num_clients: int) -> None:
    generator = torch.Generator().manual_seed(num_clients)
    start = torch.randn(5, 7, generator=generator)
    deltas = [torch.randn(5, 7, generator=generator) * (k + 1) for k in range(num_clients)]
    consistency = Consistency(start)
    for delta in deltas:
        consistency.add(delta)
    found = consistency.summary()
    cosine, difference = double_loop([(start + delta).double().numpy() for delta in deltas])
    assert found is not None
    assert found["cosine"] == pytest.approx(cosine, abs=1e-12)
    assert found["norm_difference"] == pytest.approx(difference, abs=1e-12)


def test_equal_heads_agree_and_one_head_has_nobody_to_agree_with() -> None:
    consistency = Consistency(torch.randn(3, 4))
    consistency.add(torch.zeros(3, 4))
    assert consistency.summary() is None
    consistency.add(torch.zeros(3, 4))
    found = consistency.summary()
    assert found is not None
    assert found["cosine"] == pytest.approx(1.0)
    assert found["norm_difference"] == pytest.approx(0.0, abs=1e-12)


def test_combine_reports_consistency_of_those_who_count() -> None:
    head = torch.randn(3, 4)
    replies = [
        TrainReply(k, 0, n, 1.0, 0.0, {"head.weight": torch.randn(3, 4)}, {}) for k, n in enumerate((5, 0, 7, 2))
    ]
    combined = combine(iter(replies), normalize_steps=False, head=head)
    cosine, difference = double_loop([(head + r.delta["head.weight"]).numpy() for r in replies if r.num_examples])
    assert combined is not None
    assert combined.consistency is not None
    assert combined.consistency["cosine"] == pytest.approx(cosine, abs=1e-6)
    assert combined.consistency["norm_difference"] == pytest.approx(difference, abs=1e-6)
