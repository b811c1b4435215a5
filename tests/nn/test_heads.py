"""Heads: their rows follow the seed, and only a learned head has parameters."""

import numpy as np
import pytest
import torch

from spherefed.nn.heads import FixedRandom, Learned, Orthonormal, SimplexEtf, Tammes


@pytest.mark.parametrize("head", [Learned(), FixedRandom(), Orthonormal()])
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(head: Learned | FixedRandom | Orthonormal) -> None:
    torch.manual_seed(0)
    first = head.build(5, 16, 7).weight
    torch.manual_seed(1)
    assert torch.equal(head.build(5, 16, 7).weight, first)
    assert not torch.equal(head.build(5, 16, 8).weight, first)


def test_random_rows_follow_the_range_of_torchs_own_linear() -> None:
    rows = FixedRandom().build(200, 25, 0).weight
    assert float(rows.abs().max()) <= 0.2
    assert float(rows.abs().max()) > 0.199
    assert abs(float(rows.mean())) < 0.01


def test_only_a_learned_head_has_parameters() -> None:
    assert [n for n, _ in Learned().build(3, 4, 0).named_parameters()] == ["weight"]
    for head in (FixedRandom(), Orthonormal()):
        built = head.build(3, 4, 0)
        assert not list(built.parameters())
        assert [n for n, _ in built.named_buffers()] == ["weight"]


@pytest.mark.parametrize("head", [Learned(), FixedRandom(), Orthonormal(), SimplexEtf(), Tammes(steps=50)])
def test_heads_follow_the_seed_and_report_their_coherence(head):
    first, again, other = (head.build(6, 8, seed) for seed in (0, 0, 1))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert first.weight.dtype == torch.float32
    unit = [row / np.linalg.norm(row) for row in first.weight.detach().double().numpy()]
    largest = max(float(unit[i] @ unit[j]) for i in range(6) for j in range(6) if i != j)
    assert first.coherence() == pytest.approx(largest, abs=1e-12)
    assert first.learned == (head.kind == "learned")
