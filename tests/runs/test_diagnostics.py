"""What a run records once, at its end: answers by true class, the spectrum of V, counts of clients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from spherefed.assembly import assemble
from spherefed.calibration.ffc import Accumulator
from spherefed.experiment import Experiment, with_settings
from spherefed.report.diagnostics import read_diagnostics
from spherefed.runs.finish import MAX_SPECTRUM, diagnostics_files, spectrum_of
from spherefed.runs.loading import load
from spherefed.runs.runner import run_to_end


def test_a_run_records_answers_by_class_and_counts_of_clients(experiment: Experiment, tmp_path: Path) -> None:
    settings = ["data.held_out=0.25", "partition.kind=dirichlet", "partition.clients=4", "calibration.kind=ffc"]
    chosen = with_settings(experiment, settings)
    result = run_to_end(chosen, tmp_path / "run")
    found = read_diagnostics(tmp_path / "run")
    assert set(found.confusion) == {"trained", "calibrated"}
    module, test = load(tmp_path / "run"), assemble(chosen).test
    wanted = np.zeros_like(found.confusion["calibrated"])
    with torch.no_grad():
        for inputs, labels in test.in_order(7, device=torch.device("cpu")):
            for answer, label in zip(module(inputs).argmax(dim=1).tolist(), labels.tolist(), strict=True):
                wanted[label, answer] += 1
    assert found.confusion["calibrated"].tolist() == wanted.tolist()
    for stage, counts in found.confusion.items():
        assert np.trace(counts) / counts.sum() == result["accuracy"][stage]["global_model/global_test"]
        clients = [(correct, total) for correct, total in result["evaluated"][stage].values() if total]
        accuracy = np.mean([correct / total for correct, total in clients])
        assert result["accuracy"][stage]["global_model/local_test/by_clients"] == pytest.approx(accuracy)
    assert found.spectrum is not None
    assert found.spectrum.sum() == pytest.approx(result["calibration"]["summed"]["examples"], rel=1e-4), "unit features"


def test_the_spectrum_is_that_of_the_features() -> None:
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    accumulator = Accumulator(6, 3, torch.device("cpu"))
    accumulator.add(features, torch.arange(40) % 3)
    found = spectrum_of(accumulator.total().tensors())
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    singular = torch.linalg.svdvals(unit)
    assert found is not None
    assert torch.allclose(found.flip(0), singular**2, rtol=1e-4)


def test_nothing_is_recorded_without_a_test_set_and_without_gram_matrix() -> None:
    assert diagnostics_files({}, {}) == {}
    assert spectrum_of({"counts": torch.zeros(2)}) is None
    large = {"counts": torch.zeros(2), "gram": torch.zeros(1), "cross": torch.zeros(MAX_SPECTRUM + 1, 2)}
    assert spectrum_of(large) is None
