"""CCVR and the oracle: pooled moments against numpy, the whole method against plain loops, forged moments refused."""

import numpy as np
import pytest
import torch

from spherefed.assembly import assemble
from spherefed.calibration import Ccvr
from spherefed.calibration.ccvr import Moments, moments
from spherefed.calibration.refit import Refit
from spherefed.engines.local import InProcess
from spherefed.errors import CalibrationError
from spherefed.losses import MeanSquaredError
from spherefed.messages import MeasureReply
from spherefed.rng import Purpose, stream
from spherefed.server.collection import calibrate
from support.given_features import (
    DIM,
    NUM_CLASSES,
    a_head,
    context_for,
    merged_whole,
    passing_through,
    small_experiment,
)


def clients_features(rng, *, rectified=True):
    """Three clients: class 2 has one example on each of two of them, class 3 one in all, class 4 none."""
    label_lists = [[0, 0, 0, 1, 2, 0], [2, 1, 1, 1, 0, 1], [3, 0, 0]]
    centres = rng.standard_normal((NUM_CLASSES, DIM)) + 1
    parts = []
    for labels in map(np.array, label_lists):
        features = centres[labels] + rng.standard_normal((len(labels), DIM))
        parts.append((np.maximum(features, 0) if rectified else features, labels))
    return parts


def merged(calibration, parts, context, *, normalize=False):
    total = None
    model = passing_through(context.head, normalize=normalize)
    for features, labels in parts:
        batches = [(torch.from_numpy(features[i : i + 4]), torch.from_numpy(labels[i : i + 4])) for i in (0, 4)]
        part = calibration.measure(model, [b for b in batches if len(b[1])])
        total = calibration.merge(total, part, context)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_pooled_moments_are_those_of_the_pooled_data(seed):
    parts = clients_features(np.random.default_rng(seed), rectified=bool(seed % 2))
    total = merged(Ccvr(), parts, context_for(a_head()))
    pooled = Moments.from_tensors(total, a_head())
    features, labels = (np.concatenate(x) for x in zip(*parts, strict=True))
    assert pooled.classes.tolist() == [0, 1, 2, 3]
    for position, number in enumerate(pooled.classes.tolist()):
        mine = features[labels == number]
        np.testing.assert_allclose(pooled.mean(position), mine.mean(axis=0), rtol=0, atol=1e-10)
        wanted = np.cov(mine, rowvar=False) if len(mine) > 1 else np.zeros((DIM, DIM))
        np.testing.assert_allclose(pooled.covariance(position), wanted, rtol=0, atol=1e-10)
    assert pooled.counts.tolist() == np.bincount(labels).tolist()


def test_pooling_raw_sums_is_luo_et_als_pooling_of_means_and_covariances():
    """μ_c = Σ n_k/n μ_k;  Σ_c = Σ (n_k−1)/(n−1) Σ_k + Σ n_k/(n−1) μ_k μ_kᵀ − n/(n−1) μ_c μ_cᵀ."""
    parts = clients_features(np.random.default_rng(1))
    pooled = Moments.from_tensors(merged(Ccvr(), parts, context_for(a_head())), a_head())
    of_class_0 = [features[labels == 0] for features, labels in parts]
    n = sum(len(h) for h in of_class_0)
    mean = sum(len(h) / n * h.mean(axis=0) for h in of_class_0)
    covariance = -n / (n - 1) * np.outer(mean, mean)
    for h in of_class_0:
        own = np.cov(h, rowvar=False) if len(h) > 1 else np.zeros((DIM, DIM))
        covariance += (len(h) - 1) / (n - 1) * own + len(h) / (n - 1) * np.outer(h.mean(axis=0), h.mean(axis=0))
    np.testing.assert_allclose(pooled.covariance(0), covariance, rtol=0, atol=1e-10)


def plain_softmax_gradient(weight, row, label):
    scores = weight @ row
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    shares[label] -= 1
    return np.outer(shares, row)


def plain_ccvr(parts, head, *, num_virtual, tukey, lr, epochs, batch_size, momentum, seed, round_index):
    """The whole method in loops over examples; covariances by numpy, roots by singular values."""
    features, labels = (np.concatenate(x) for x in zip(*parts, strict=True))
    virtual, targets = [], []
    for number in sorted(set(labels.tolist())):
        mine = features[labels == number]
        mean = sum(mine) / len(mine)
        covariance = np.zeros((DIM, DIM))
        for row in mine:
            covariance += np.outer(row - mean, row - mean) / max(len(mine) - 1, 1)
        u, s, _ = np.linalg.svd(covariance)
        rank = min(len(mine) - 1, DIM)
        root = u[:, :rank] @ np.diag(np.sqrt(s[:rank])) @ u[:, :rank].T
        noise = stream(seed, Purpose.VIRTUAL, round_index, number).standard_normal((num_virtual, DIM))
        for draw in noise:
            row = mean + root @ draw
            if (features >= 0).all():
                row = np.array([max(v, 0.0) ** tukey for v in row])
            virtual.append(row)
            targets.append(number)
    order = stream(seed, Purpose.REFIT, round_index)
    weight, velocity = head.copy(), np.zeros_like(head)
    for _ in range(epochs):
        shuffled = order.permutation(len(targets))
        for start in range(0, len(shuffled), batch_size):
            batch = shuffled[start : start + batch_size]
            gradient = sum(plain_softmax_gradient(weight, virtual[i], targets[i]) for i in batch) / len(batch)
            for number in range(NUM_CLASSES):
                if number in targets:
                    velocity[number] = momentum * velocity[number] + gradient[number]
                    weight[number] -= lr * velocity[number]
    return weight


@pytest.mark.parametrize("rectified", [True, False])
def test_ccvr_agrees_with_plain_loops(rectified):
    parts = clients_features(np.random.default_rng(5), rectified=rectified)
    head = a_head(1)
    how = {"lr": 0.05, "epochs": 3, "batch_size": 8, "momentum": 0.9}
    ccvr = Ccvr(num_virtual=20, refit=Refit(**how))
    context = context_for(head)
    solved = ccvr.solve(merged(ccvr, parts, context), context)
    wanted = plain_ccvr(parts, head.numpy(), num_virtual=20, tukey=0.5, seed=3, round_index=9, **how)
    np.testing.assert_allclose(solved.weight, wanted, rtol=0, atol=1e-11)
    assert solved.summary()["tukey"] == (0.5 if rectified else 1.0)
    assert torch.equal(solved.weight[4], head[4])
    assert not torch.equal(solved.weight[3], head[3])
    assert solved.summary()["num_absent"] == 1
    assert solved.summary()["loss_after"] < solved.summary()["loss_before"]


def test_virtual_features_have_the_pooled_moments():
    """Seen through a refit whose first full-batch gradient under MSE is linear in the features' means."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3
    features = rng.standard_normal((600, DIM)) @ rng.standard_normal((DIM, DIM)) + 10 * np.eye(NUM_CLASSES, DIM)[labels]
    ccvr = Ccvr(num_virtual=4000, refit=Refit(lr=1.0, epochs=1, batch_size=None, momentum=0.0, loss=MeanSquaredError()))
    context = context_for(torch.zeros(NUM_CLASSES, DIM, dtype=torch.float64))
    parts = [(features[k::2], labels[k::2]) for k in range(2)]
    solved = ccvr.solve(merged_whole(ccvr, parts, context), context)
    for number in range(3):  # the gradient of the MSE at W = 0 is −2/C · share · mean
        wanted = 2 / NUM_CLASSES / 3 * features[labels == number].mean(axis=0)
        np.testing.assert_allclose(solved.weight[number], wanted, atol=0.03)


def test_moments_of_a_normalising_model_are_on_the_sphere():
    parts = clients_features(np.random.default_rng(0))
    total = merged(Ccvr(), parts, context_for(a_head()), normalize=True)
    pooled = Moments.from_tensors(total, a_head())
    traces = [float(np.trace(pooled.covariance(i)) * (n - 1) + n * pooled.mean(i) @ pooled.mean(i))
              for i, n in enumerate(pooled.counts.tolist())]  # fmt: skip
    assert traces == pytest.approx(pooled.counts.tolist(), abs=1e-9)


def forged(**changes):
    features = torch.from_numpy(np.random.default_rng(0).random((9, DIM)))
    return dict(moments(features, torch.tensor([0, 0, 0, 2, 2, 2, 2, 4, 4])).tensors()) | changes


def only_off_diagonal():
    full = torch.ones(DIM, DIM, dtype=torch.float64) - torch.eye(DIM, dtype=torch.float64)
    return full[torch.ones(DIM, DIM).triu() > 0].repeat(3, 1)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"extra": torch.zeros(1)}, "must be classes, counts"),
        ({"sums": torch.zeros(3, DIM)}, "must be classes, counts"),
        ({"sums": torch.zeros(3, DIM + 1, dtype=torch.float64)}, "sums has shape"),
        ({"products": torch.zeros(3, 5, dtype=torch.float64)}, "products has shape"),
        ({"classes": torch.tensor([0, 2, 5])}, "lie in 0..4, got 0..5"),
        ({"classes": torch.tensor([-1, 2, 4])}, "lie in 0..4, got -1"),
        ({"classes": torch.tensor([0, 2, 2])}, "ascending"),
        ({"classes": torch.tensor([0, 2**63 - 1, -5])}, "lie in 0..4, got -5"),  # differences wrap
        ({"counts": torch.tensor([3, -4, 2])}, r"lie in 1\.\..*got -4"),
        ({"counts": torch.tensor([3, 0, 2])}, r"lie in 1\.\..*got 0"),
        ({"counts": torch.tensor([3, 4, 2**62])}, r"lie in 1\.\."),
        ({"num_signed": torch.tensor([10])}, r"num_signed .*0\.\.9, got 10"),
        ({"sums": torch.full((3, DIM), 1e6, dtype=torch.float64)}, "not sums over examples"),
        ({"sums": torch.full((3, DIM), torch.nan, dtype=torch.float64)}, "not sums over examples"),
        ({"products": 0 * forged()["products"]}, "not sums over examples"),
        ({"sums": 0 * forged()["sums"], "products": only_off_diagonal()}, "a product exceeds every square"),
        ({"sums": -forged()["sums"]}, "negative sums"),
    ],
)
def test_forged_moments_are_refused(changes, cause):
    with pytest.raises(CalibrationError, match=cause):
        Ccvr().merge(None, forged(**changes), context_for(a_head()))


def test_a_forged_reply_is_recorded_and_the_others_count():
    assembly = assemble(small_experiment(calibration=Ccvr(num_virtual=5, refit=Refit(lr=0.01, epochs=1))))
    honest = InProcess(assembly.clients)

    class OneForger:
        clients = honest.clients

        def ask(self, clients, request):
            for reply in honest.ask(clients, request):
                if reply.client == 0:
                    wrong = dict(reply.moments) | {"counts": -reply.moments["counts"]}
                    yield MeasureReply(reply.client, reply.round, reply.num_examples, wrong)
                else:
                    yield reply

    model = assembly.initial()
    done = calibrate(assembly.experiment.calibration, OneForger(), model, assembly.context(model, 0))
    assert [r.client for r in done.rejected] == [0]
    assert "moments of -173 examples" in done.rejected[0].cause
