"""CCVR and the oracle: pooled moments against numpy, the whole method against plain loops, forged moments refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from spherefed.assembly import assemble
from spherefed.calibration import Ccvr, Context, Ffc, FfcGcv, Oracle
from spherefed.calibration.ccvr import Moments, moments
from spherefed.calibration.refit import Refit, refit
from spherefed.engines.local import InProcess
from spherefed.errors import CalibrationError, ConfigError
from spherefed.experiment import Experiment, Model
from spherefed.gathering import calibrate
from spherefed.losses import CrossEntropy, MeanSquares
from spherefed.messages import MeasureReply, ModelState
from spherefed.nn.classifier import Classifier
from spherefed.nn.heads import FixedRandom, Learned, Linear, Orthonormal
from spherefed.rng import Purpose, stream
from spherefed.runner import run, run_to_end
from spherefed.runs import read_lines
from spherefed.training import LocalTraining

NUM_CLASSES, DIM = 5, 7


def passing_through(head, *, normalize=False):
    return Classifier(torch.nn.Identity(), Linear(head, learned=False), num_classes=NUM_CLASSES, normalize=normalize)


def clients_features(rng, *, rectified=True):
    """Three clients: class 2 has one example on each of two of them, class 3 one in all, class 4 none."""
    label_lists = [[0, 0, 0, 1, 2, 0], [2, 1, 1, 1, 0, 1], [3, 0, 0]]
    centres = rng.standard_normal((NUM_CLASSES, DIM)) + 1
    parts = []
    for labels in map(np.array, label_lists):
        features = centres[labels] + rng.standard_normal((len(labels), DIM))
        parts.append((np.maximum(features, 0) if rectified else features, labels))
    return parts


def context_for(head):
    return Context(head=head, seed=3, round=9)


def merged(calibration, parts, context, *, normalize=False):
    total = None
    model = passing_through(context.head, normalize=normalize)
    for features, labels in parts:
        batches = [(torch.from_numpy(features[i : i + 4]), torch.from_numpy(labels[i : i + 4])) for i in (0, 4)]
        part = calibration.measure(model, [b for b in batches if len(b[1])])
        total = calibration.merge(total, part, context)
    return total


def a_head(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((NUM_CLASSES, DIM)))


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
    held = [features[labels == 0] for features, labels in parts]
    n = sum(len(h) for h in held)
    mean = sum(len(h) / n * h.mean(axis=0) for h in held)
    covariance = -n / (n - 1) * np.outer(mean, mean)
    for h in held:
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
    assert solved.facts()["tukey"] == (0.5 if rectified else 1.0)
    assert torch.equal(solved.weight[4], head[4])
    assert not torch.equal(solved.weight[3], head[3])
    assert solved.facts()["num_absent"] == 1
    assert solved.facts()["loss_after"] < solved.facts()["loss_before"]


def test_virtual_features_have_the_pooled_moments():
    """Seen through a refit whose first full-batch gradient under MSE is linear in the features' means."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3
    features = rng.standard_normal((600, DIM)) @ rng.standard_normal((DIM, DIM)) + 10 * np.eye(NUM_CLASSES, DIM)[labels]
    ccvr = Ccvr(num_virtual=4000, refit=Refit(lr=1.0, epochs=1, batch_size=None, momentum=0.0, loss=MeanSquares()))
    context = context_for(torch.zeros(NUM_CLASSES, DIM, dtype=torch.float64))
    parts = [(features[k::2], labels[k::2]) for k in range(2)]
    solved = ccvr.solve(_merged_whole(ccvr, parts, context), context)
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
        ({"extra": torch.zeros(1)}, "are classes, counts"),
        ({"sums": torch.zeros(3, DIM)}, "are classes, counts"),
        ({"sums": torch.zeros(3, DIM + 1, dtype=torch.float64)}, "sums has shape"),
        ({"products": torch.zeros(3, 5, dtype=torch.float64)}, "products has shape"),
        ({"classes": torch.tensor([0, 2, 5])}, "name class 5 of 5"),
        ({"classes": torch.tensor([-1, 2, 4])}, "name class"),
        ({"classes": torch.tensor([0, 2, 2])}, "ascending"),
        ({"counts": torch.tensor([3, -4, 2])}, "count between -4"),
        ({"counts": torch.tensor([3, 0, 2])}, "count between 0"),
        ({"counts": torch.tensor([3, 4, 2**62])}, "count between"),
        ({"num_signed": torch.tensor([10])}, "claim 10 signed of 9"),
        ({"sums": torch.full((3, DIM), 1e6, dtype=torch.float64)}, "cannot come from examples"),
        ({"sums": torch.full((3, DIM), torch.nan, dtype=torch.float64)}, "cannot come from examples"),
        ({"products": 0 * forged()["products"]}, "cannot come from examples"),
        ({"sums": 0 * forged()["sums"], "products": only_off_diagonal()}, "a product exceeds every square"),
        ({"sums": -forged()["sums"]}, "negative but claim"),
    ],
)
def test_forged_moments_are_refused(changes, cause):
    with pytest.raises(CalibrationError, match=cause):
        Ccvr().merge(None, forged(**changes), context_for(a_head()))


def test_the_oracle_refuses_what_does_not_fit():
    good = {"features": torch.zeros(3, DIM), "labels": torch.tensor([0, 1, 4])}
    Oracle().merge(None, good, context_for(a_head()))
    for change in (
        {"labels": torch.tensor([0, 1, 5])},
        {"labels": torch.tensor([0, 1])},
        {"features": torch.ones(3, 2)},
    ):
        with pytest.raises(CalibrationError):
            Oracle().merge(None, good | change, context_for(a_head()))


@pytest.mark.parametrize("calibration", [Ccvr(), Oracle(), Ffc(), FfcGcv()])
def test_nothing_measured_cannot_be_solved(calibration):
    context = context_for(a_head())
    empty = calibration.measure(passing_through(a_head()), [])
    with pytest.raises(CalibrationError, match=r"no (example|feature) was measured"):
        calibration.solve(calibration.merge(None, empty, context), context)


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(scale=4.0), MeanSquares()])
def test_refit_is_torch_sgd_on_the_head(loss):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, DIM, generator=generator, dtype=torch.float64)
    labels = torch.arange(30) % NUM_CLASSES
    weight = torch.nn.Parameter(a_head())
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.5)
    order = np.random.default_rng(1)
    for _ in range(4):
        for chosen in torch.from_numpy(order.permutation(30)).split(7):
            sgd.zero_grad()
            loss(features[chosen] @ weight.T, labels[chosen]).backward()
            sgd.step()
    how = Refit(lr=0.1, momentum=0.5, epochs=4, batch_size=7, loss=loss)
    mine = refit(a_head(), features, labels, how, np.random.default_rng(1))
    torch.testing.assert_close(mine.weight, weight.detach(), rtol=0, atol=1e-12)
    assert mine.num_steps == 20


def test_the_oracle_comes_near_the_closed_form_under_mse():
    """Table 4: SGD on the pooled features and the closed form have the same optimum."""
    rng = np.random.default_rng(2)
    labels = rng.integers(NUM_CLASSES, size=400)
    features = rng.standard_normal((400, DIM)) + 2 * np.eye(NUM_CLASSES, DIM)[labels]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    parts = [(features[k::2], labels[k::2]) for k in range(2)]
    context = context_for(a_head())
    oracle = Oracle(refit=Refit(lr=2.0, epochs=600, batch_size=None, loss=MeanSquares()))
    by_sgd = oracle.solve(_merged_whole(oracle, parts, context), context).weight
    closed = Ffc().solve(_merged_whole(Ffc(), parts, context), context).weight
    np.testing.assert_allclose(by_sgd, closed, atol=2e-4)


def _merged_whole(calibration, parts, context):
    total, model = None, passing_through(context.head)
    for features, labels in parts:
        part = calibration.measure(model, [(torch.from_numpy(features), torch.from_numpy(labels))])
        total = calibration.merge(total, part, context)
    return total


def test_a_diverging_refit_is_an_error():
    with pytest.raises(CalibrationError, match=r"diverged; lower calibration\.refit\.lr"):
        refit(a_head(), 1e9 * torch.ones(5, DIM, dtype=torch.float64), torch.arange(5),
              Refit(lr=1e300, loss=MeanSquares()), np.random.default_rng(0))  # fmt: skip


def small_experiment(**changes):
    base = Experiment(name="small", rounds=3, local=LocalTraining(lr=0.1, epochs=1), calibration=Ffc())
    return replace(base, **changes)


HEADS = [
    pytest.param(Model(head=FixedRandom()), id="CE + Fix(R)"),
    pytest.param(Model(head=Learned()), id="CE, learned"),
    pytest.param(Model(head=Orthonormal(), normalize=True), id="CE + Fix(OU) + Norm"),
]


@pytest.mark.parametrize("model", HEADS)
@pytest.mark.parametrize(
    "calibration",
    [Ffc(), FfcGcv(), Ccvr(num_virtual=50, refit=Refit(lr=0.01, epochs=5)), Oracle(refit=Refit(lr=0.1, epochs=5))],
)
def test_every_calibration_works_on_every_head_and_helps_an_untrained_encoder(model, calibration):
    experiment = small_experiment(model=model, calibration=calibration)
    assembly = assemble(experiment)
    before = assembly.initial()
    fleet = InProcess(assembly.client, 10)
    done = calibrate(calibration, fleet, before, assembly.context(before, 3))
    again = calibrate(calibration, fleet, before, assembly.context(before, 3))
    assert not done.refused
    assert done.model.digest() == again.model.digest()
    assert (done.model.head is None) == (model.head.kind == "learned")
    assert assembly.evaluate(done.model).accuracy > assembly.evaluate(before).accuracy + 0.1


@pytest.mark.parametrize("model", HEADS)
def test_ffc_predicts_the_same_on_unit_features_and_on_the_models_own(model):
    """Table 9: the head is solved on unit features (Eq. 9) and used on features of any length."""
    assembly = assemble(small_experiment(model=model))
    before = assembly.initial()
    done = calibrate(Ffc(), InProcess(assembly.client, 10), before, assembly.context(before, 3))
    inputs, _ = next(assembly.dataset.train.in_order(200, device=torch.device("cpu")))
    assembly.bench.lay(done.model)
    classifier = assembly.bench.classifier.eval()
    with torch.no_grad():
        raw = classifier.raw_features(inputs).double().numpy()
        predicted = classifier(inputs).argmax(dim=1).numpy()
    rows, targets = [], []
    for number in range(10):
        client = assembly.client(number)
        for batch, labels in client.examples.in_order(10_000, device=torch.device("cpu")):
            assembly.bench.lay(before)
            with torch.no_grad():
                h = assembly.bench.classifier.eval().raw_features(batch).double().numpy()
            kept = np.linalg.norm(h, axis=1) > 0
            rows.append(h[kept] / np.linalg.norm(h[kept], axis=1, keepdims=True))
            targets.append(np.eye(10)[labels.numpy()[kept]])
    weight = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=1e-6)[0]
    scores = raw / np.linalg.norm(raw, axis=1, keepdims=True) @ weight
    ordered = np.sort(scores, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-3  # lstsq's features are not truncated
    assert clear.mean() > 0.9
    assert (scores.argmax(axis=1) == predicted)[clear].all()


def test_a_forged_reply_is_recorded_and_the_others_count():
    assembly = assemble(small_experiment(calibration=Ccvr(num_virtual=5, refit=Refit(lr=0.01, epochs=1))))
    honest = InProcess(assembly.client, 10)

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
    assert [r.client for r in done.refused] == [0]
    assert "count between" in done.refused[0].cause


@pytest.mark.parametrize("model", [Model(head=Orthonormal(), normalize=True), Model(head=Learned())])
def test_calibrating_every_two_rounds_replaces_the_head_and_resumes_to_the_bit(model, tmp_path):
    experiment = small_experiment(model=model, rounds=6, calibrate_every=2)
    result = run_to_end(experiment, tmp_path / "whole")
    lines = read_lines(tmp_path / "whole" / "rounds.jsonl")
    assert [line["round"] for line in lines if "calibrated" in line] == [1, 3]  # the sixth is the run's own
    for line in (lines[1], lines[3]):
        assert line["calibrated"]["accuracy"].keys() == line["accuracy"].keys()
        assert line["calibrated"]["facts"]["ridge"] == 0
    fixed = model.head.kind != "learned"
    grown = lines[2]["bytes_down"]["0"] - lines[0]["bytes_down"]["0"]
    assert grown == (4 * 10 * 64 if fixed else 0)  # a calibrated head travels, a learned one travels anyway
    plain = run_to_end(replace(experiment, calibrate_every=None), tmp_path / "plain")
    assert plain["weights_sha256"] != result["weights_sha256"]
    assert plain["traffic"]["calibrate"]["up"] * 3 == pytest.approx(result["traffic"]["calibrate"]["up"])

    for progress in run(experiment, tmp_path / "cut"):
        if progress.index == 1:  # just calibrated
            break
    resumed = run_to_end(experiment, tmp_path / "cut", resume=True)
    assert resumed["weights_sha256"] == result["weights_sha256"]


def test_a_rounds_calibrated_head_is_what_the_next_round_trains_against():
    state = ModelState({"encoder.weight": torch.zeros(2)}, {})
    assert torch.equal(state.with_head(torch.ones(2, 2)).head["weight"], torch.ones(2, 2))
    learned = ModelState({"head.weight": torch.zeros(2, 2)}, {}).with_head(torch.ones(2, 2, dtype=torch.float64))
    assert learned.head is None
    assert torch.equal(learned.params["head.weight"], torch.ones(2, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Ccvr(num_virtual=0),
        lambda: Ccvr(tukey=0.0),
        lambda: Refit(lr=0.0),
        lambda: Refit(lr=1.0, epochs=0),
        lambda: Refit(lr=1.0, batch_size=0),
        lambda: Refit(lr=1.0, momentum=1.0),
        lambda: small_experiment(calibrate_every=0),
        lambda: small_experiment(calibration=None, calibrate_every=2),
    ],
)
def test_impossible_values_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
