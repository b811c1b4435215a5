"""What every calibration promises: it serves every head, and calibrating between rounds resumes to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from spherefed.assembly import assemble
from spherefed.calibration import Ccvr, Ffc, FfcGcv, Oracle
from spherefed.calibration.refit import Refit
from spherefed.client.evaluation import global_accuracy
from spherefed.engines.local import InProcess
from spherefed.errors import CalibrationError, ConfigError
from spherefed.experiment import Model
from spherefed.messages import ModelState
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run, run_to_end
from spherefed.server.collection import calibrate
from support.given_features import (
    a_head,
    context_for,
    passing_through,
    small_experiment,
)


@pytest.mark.parametrize("calibration", [Ccvr(), Oracle(), Ffc(), FfcGcv()])
def test_nothing_measured_cannot_be_solved(calibration):
    context = context_for(a_head())
    empty = calibration.measure(passing_through(a_head()), [])
    with pytest.raises(CalibrationError, match=r"no (example|feature) was measured"):
        calibration.solve(calibration.merge(None, empty, context), context)


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
    fleet = InProcess(assembly.clients)
    done = calibrate(calibration, fleet, before, assembly.context(before, 3))
    again = calibrate(calibration, fleet, before, assembly.context(before, 3))
    assert not done.rejected
    assert done.model.digest() == again.model.digest()
    assert (done.model.head is None) == (model.head.kind == "learned")
    first, last = (global_accuracy(assembly.local_model, m, assembly.dataset.test) for m in (before, done.model))
    assert first is not None
    assert last is not None
    assert last > first + 0.1


@pytest.mark.parametrize("model", HEADS)
def test_ffc_predicts_the_same_on_unit_features_and_on_the_models_own(model):
    """Table 9: the head is solved on unit features (Eq. 9) and used on features of any length."""
    assembly = assemble(small_experiment(model=model))
    before = assembly.initial()
    done = calibrate(Ffc(), InProcess(assembly.clients), before, assembly.context(before, 3))
    inputs, _ = next(assembly.dataset.train.in_order(200, device=torch.device("cpu")))
    assembly.local_model.load_state(done.model)
    classifier = assembly.local_model.classifier.eval()
    with torch.no_grad():
        raw = classifier.raw_features(inputs).double().numpy()
        predicted = classifier(inputs).argmax(dim=1).numpy()
    rows, targets = [], []
    for number in range(10):
        client = assembly.clients[number]
        for batch, labels in client.examples.in_order(10_000, device=torch.device("cpu")):
            assembly.local_model.load_state(before)
            with torch.no_grad():
                h = assembly.local_model.classifier.eval().raw_features(batch).double().numpy()
            kept = np.linalg.norm(h, axis=1) > 0
            rows.append(h[kept] / np.linalg.norm(h[kept], axis=1, keepdims=True))
            targets.append(np.eye(10)[labels.numpy()[kept]])
    weight = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=1e-6)[0]
    scores = raw / np.linalg.norm(raw, axis=1, keepdims=True) @ weight
    ordered = np.sort(scores, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-3  # lstsq's features are not truncated
    assert clear.mean() > 0.9
    assert (scores.argmax(axis=1) == predicted)[clear].all()


@pytest.mark.parametrize("model", [Model(head=Orthonormal(), normalize=True), Model(head=Learned())])
def test_calibrating_every_two_rounds_replaces_the_head_and_resumes_to_the_bit(model, tmp_path):
    experiment = small_experiment(model=model, rounds=6, calibrate_every=2)
    result = run_to_end(experiment, tmp_path / "whole")
    lines = read_lines(tmp_path / "whole" / "rounds.jsonl")
    assert [line["round"] for line in lines if "calibrated" in line] == [1, 3]  # the sixth is the run's own
    for line in (lines[1], lines[3]):
        assert line["calibrated"]["accuracy"].keys() == line["accuracy"].keys()
        assert line["calibrated"]["summary"]["ridge"] == 0
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
