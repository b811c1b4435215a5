"""The weighted mean of replies against the papers' formulas, and the consistency of heads against a double loop."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from spherefed.messages import TrainReply
from spherefed.server.aggregation import BLOCK, Aggregate, Consistency, WeightedSum
from support.small import aggregate


def reply(client: int, n: int, steps: float, seed: int, buffers: bool = True) -> TrainReply:
    generator = torch.Generator().manual_seed(seed)
    return TrainReply(
        client=client,
        round=0,
        num_examples=n,
        effective_steps=steps,
        loss=float(client),
        delta={"w": torch.randn(3, 4, generator=generator), "b": torch.randn(4, generator=generator)},
        buffers={"mean": torch.randn(4, generator=generator)} if buffers else {},
    )


def some_replies(count: int = 6, *, equal_steps: bool = False) -> list[TrainReply]:
    rng = np.random.default_rng(count)
    return [
        reply(k, int(rng.integers(1, 500)), 7.0 if equal_steps else float(rng.uniform(1, 90)), k) for k in range(count)
    ]


def maybe_combined(replies: Iterable[TrainReply], *, normalize_steps: bool = False) -> Aggregate | None:
    return aggregate(replies, normalize_steps=normalize_steps)


def combined(replies: list[TrainReply], *, normalize_steps: bool = False) -> Aggregate:
    result = maybe_combined(iter(replies), normalize_steps=normalize_steps)
    assert result is not None
    return result


@pytest.mark.parametrize("normalize_steps", [False, True])
def test_combine_equals_the_papers_formula_in_float64(normalize_steps: bool) -> None:
    replies = some_replies()
    result = combined(replies, normalize_steps=normalize_steps)
    n = np.array([r.num_examples for r in replies], dtype=np.float64)
    p = n / n.sum()
    a = np.array([r.effective_steps if normalize_steps else 1.0 for r in replies])
    for name in ("w", "b"):
        deltas = np.stack([r.delta[name].double().numpy() for r in replies])
        expected = (p @ a) * np.tensordot(p / a, deltas, axes=1)
        assert np.allclose(result.delta[name].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert result.delta[name].dtype == torch.float32
    means = np.stack([r.buffers["mean"].double().numpy() for r in replies])
    assert np.allclose(result.buffers["mean"].numpy(), p @ means, rtol=1e-5, atol=1e-6)
    assert result.loss == pytest.approx(float(p @ np.array([r.loss for r in replies])))
    assert result.num_examples == n.sum()
    assert result.num_averaged == 6


def test_fednova_equals_fedavg_when_clients_take_equal_steps() -> None:
    replies = some_replies(equal_steps=True)
    nova, avg = combined(replies, normalize_steps=True), combined(replies)
    for name in avg.delta:
        assert torch.allclose(nova.delta[name], avg.delta[name], rtol=1e-5, atol=1e-7)
    unequal = combined(some_replies(), normalize_steps=True)
    assert not torch.allclose(unequal.delta["w"], combined(some_replies()).delta["w"], rtol=1e-2)


def test_combine_does_not_depend_on_the_order_of_clients() -> None:
    replies = some_replies(8)
    for normalize_steps in (False, True):
        forward = combined(replies, normalize_steps=normalize_steps)
        backward = combined(replies[::-1], normalize_steps=normalize_steps)
        assert all(torch.allclose(forward.delta[n], backward.delta[n], atol=1e-5) for n in forward.delta)


def test_combine_leaves_the_replies_alone_and_streams_them() -> None:
    alive = 0

    def streaming() -> Iterator[TrainReply]:
        nonlocal alive
        for r in some_replies():
            alive += 1
            yield r
            alive -= 1

    replies = some_replies()
    before = [{n: t.clone() for n, t in r.delta.items()} for r in replies]
    result = combined(replies)
    assert all(torch.equal(r.delta[n], b[n]) for r, b in zip(replies, before, strict=True) for n in b)
    again = maybe_combined(streaming())
    assert alive == 0
    assert again is not None
    assert torch.equal(again.delta["w"], result.delta["w"])


def test_zero_deltas_move_nothing_and_clients_without_examples_do_not_count() -> None:
    still = [replace(r, delta={n: torch.zeros_like(t) for n, t in r.delta.items()}) for r in some_replies()]
    assert all(not bool(t.any()) for t in combined(still, normalize_steps=True).delta.values())
    empty = replace(reply(9, 0, 0.0, 9), loss=1e9)
    with_empty, without = (
        combined([*some_replies(), empty], normalize_steps=True),
        combined(some_replies(), normalize_steps=True),
    )
    assert torch.equal(with_empty.delta["w"], without.delta["w"])
    assert with_empty.loss == without.loss
    assert maybe_combined([empty]) is None
    assert maybe_combined([]) is None


def test_a_weighted_sum_equals_numpys() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(5, 4)), rng.normal(size=5)
    total = WeightedSum()
    for row, weight in zip(rows, weights, strict=True):
        total.add({"x": torch.from_numpy(row), "y": torch.from_numpy(row[:2])}, weight)
    expected = 0.25 * weights @ rows
    found = total.times(0.25)
    assert np.allclose(found["x"].numpy(), expected, rtol=1e-14)
    assert np.allclose(found["y"].numpy(), expected[:2], rtol=1e-14)


def test_a_weighted_sum_leaves_what_it_adds_alone_and_skips_nothing_but_empty_mappings() -> None:
    first = {"x": torch.ones(2)}
    total = WeightedSum()
    total.add({}, 5.0)
    total.add(first, 3.0)
    assert total.times(1.0)["x"].tolist() == [3.0, 3.0]
    assert first["x"].tolist() == [1.0, 1.0]
    assert WeightedSum().times(2.0) == {}


# Consistency of heads


def double_loop(heads: list[np.ndarray]) -> tuple[float, float]:
    """SphereFed, Eq. 2 and 3, term by term over classes and ordered pairs of clients."""
    cosines, differences = [], []
    for one, other in permutations(range(len(heads)), 2):
        for c in range(len(heads[0])):
            w, u = heads[one][c], heads[other][c]
            cosines.append(w @ u / (np.linalg.norm(w) * np.linalg.norm(u)))
            differences.append(abs(np.linalg.norm(w) - np.linalg.norm(u)))
    return float(np.mean(cosines)), float(np.mean(differences))


@pytest.mark.parametrize("num_clients", [2, 3, 9, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5])
def test_consistency_equals_a_double_loop(num_clients: int) -> None:
    """Also where the clients fill one block of the computation, or several."""
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


def test_a_row_without_a_direction_counts_as_orthogonal_to_all() -> None:
    heads = torch.randn(BLOCK + 3, 2, 4, dtype=torch.float64)
    heads[5, 1] = 0.0
    consistency = Consistency(torch.zeros(2, 4, dtype=torch.float64))
    for head in heads:
        consistency.add(head)
    found = consistency.summary()
    cosines = torch.nn.functional.cosine_similarity(heads[:, None], heads[None], dim=-1)
    pairs = ~torch.eye(len(heads), dtype=torch.bool)
    assert found is not None
    assert found["cosine"] == pytest.approx(float(cosines[pairs].mean()), abs=1e-12)


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
    combined = aggregate(iter(replies), normalize_steps=False, head=head)
    cosine, difference = double_loop([(head + r.delta["head.weight"]).numpy() for r in replies if r.num_examples])
    assert combined is not None
    assert combined.consistency is not None
    assert combined.consistency["cosine"] == pytest.approx(cosine, abs=1e-6)
    assert combined.consistency["norm_difference"] == pytest.approx(difference, abs=1e-6)
