"""What a run computes after its last round: evaluation and calibration."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score

from spherefed.assembly import assemble
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.experiment import Experiment, with_settings
from spherefed.runs.loading import load
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run_to_end


def test_local_accuracies_come_from_the_clients_held_out_examples(experiment: Experiment, tmp_path: Path) -> None:
    settings = ["data.held_out=0.25", "partition.kind=dirichlet", "partition.clients=4"]
    settings += ["calibration=none", "local.lr=0.001"]  # a bad model, right for some clients and wrong for others
    held_out = with_settings(experiment, settings)
    result = run_to_end(held_out, tmp_path / "run")
    module, assembly = load(tmp_path / "run"), assemble(held_out)
    right, sizes = [], []
    for k in range(4):
        client = assembly.clients[k]
        mine = client.held_out
        assert mine.indices is not None
        assert not set(mine.indices.tolist()) & set(client.examples.indices.tolist())
        with torch.no_grad():
            scores = module(mine.inputs[mine.indices])
        right.append(int((scores.argmax(dim=1) == mine.labels[mine.indices]).sum()))
        sizes.append(len(mine))
    right, sizes = [r for r, n in zip(right, sizes, strict=True) if n], [n for n in sizes if n]
    accuracy = result["accuracy"]["trained"]
    assert accuracy["global_model/local_test/by_samples"] == pytest.approx(sum(right) / sum(sizes))
    expected = np.mean([r / n for r, n in zip(right, sizes, strict=True)])
    assert expected != pytest.approx(sum(right) / sum(sizes))  # otherwise both ways of weighing are one
    assert accuracy["global_model/local_test/by_clients"] == pytest.approx(expected)


def test_measures_are_those_of_scikit_learn_on_the_test_set_and_on_all_held_out_examples(
    experiment: Experiment, tmp_path: Path
) -> None:
    settings = ["data.held_out=0.25", "partition.kind=dirichlet", "partition.clients=4", "local.lr=0.001"]
    held_out = with_settings(experiment, [*settings, "calibration.kind=ffc"])
    result = run_to_end(held_out, tmp_path / "run")
    module, assembly = load(tmp_path / "run"), assemble(held_out)
    own = [assembly.clients[k].held_out for k in range(4)]
    rows = torch.cat([each.indices for each in own if each.indices is not None])
    test, train = assembly.dataset.test, assembly.dataset.train
    expected = {
        "global_model/global_test": (test.inputs, test.labels),
        "global_model/local_test/by_samples": (train.inputs[rows], train.labels[rows]),
    }
    assert result["measures"]["calibrated"].keys() == expected.keys()
    for name, (inputs, labels) in expected.items():
        with torch.no_grad():
            answers = module(inputs).argmax(dim=1)
        found = result["measures"]["calibrated"][name]
        assert found["macro_f1"] == pytest.approx(f1_score(labels, answers, average="macro", zero_division=0.0))
        recall = recall_score(labels, answers, average=None, zero_division=np.nan)
        assert found["balanced_accuracy"] == pytest.approx(np.nanmean(recall))
    line = read_lines(tmp_path / "run" / "rounds.jsonl")[-1]
    assert line["measures"] == {GLOBAL_TEST: result["measures"]["trained"][GLOBAL_TEST]}


def test_the_result_says_what_ffc_summed_and_whom_it_left_out(experiment: Experiment, tmp_path: Path) -> None:
    settings = ["partition={kind='dirichlet', alpha=0.3, clients=6}", "min_samples=10", "calibration.kind=ffc"]
    chosen = with_settings(experiment, settings)
    summed = run_to_end(chosen, tmp_path / "run")["calibration"]["summed"]
    sizes = assemble(chosen).partition.sizes
    small = [k for k, n in enumerate(sizes) if 0 < n < 10]
    assert small, sizes  # otherwise nobody is left out
    assert summed["left_out"] == small
    assert summed["clients"] == 6 - len(small)
    assert summed["examples"] + summed["zero_vectors"] == sum(int(n) for n in sizes if not 0 < n < 10)
