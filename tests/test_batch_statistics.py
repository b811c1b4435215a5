"""BatchNorm in a federation: batches of one, and the three policies for running statistics."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spherefed.assembly import assemble
from spherefed.calibration import Ffc
from spherefed.data.examples import Examples
from spherefed.data.partition import Dirichlet, Stored
from spherefed.data.partition_file import write_parts
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError
from spherefed.experiment import Data, Experiment, Model
from spherefed.federation import federate
from spherefed.losses import CrossEntropy
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import SmallNet
from spherefed.nn.heads import Learned
from spherefed.runner import run_to_end
from spherefed.runs import read_lines
from spherefed.training import LocalTraining, train
from spherefed.workbench import Workbench

CPU = torch.device("cpu")


def experiment(**changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "batchnorm",
        "rounds": 2,
        "data": Data(examples=200),
        "partition": Dirichlet(alpha=0.5, clients=4),
        "model": Model(encoder=SmallNet(norm="batch")),
        "local": LocalTraining(lr=0.05, epochs=1, batch_size=16),
    }
    return Experiment(**(values | changes))


def numbered(num: int) -> Examples:
    """Examples whose only input is their own number."""
    return Examples(torch.arange(num, dtype=torch.float32)[:, None], torch.zeros(num, dtype=torch.int64))


def dense_bench() -> Workbench:
    """BatchNorm on flat features: the layer that torch refuses to train on one example."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.ReLU())
    return Workbench(Classifier(encoder, Learned().build(3, 8, 0), num_classes=3, normalize=False))


# Batches of one


@pytest.mark.parametrize("num", range(12))
@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_a_last_batch_that_is_too_small_joins_the_one_before(num: int, smallest: int) -> None:
    order = np.random.default_rng(0)
    batches = [x[:, 0].tolist() for x, _ in numbered(num).epoch(4, order, device=CPU, smallest=smallest)]
    assert sorted(chain(*batches)) == (list(range(num)) if num >= smallest else [])
    assert all(len(batch) == 4 for batch in batches[:-1])
    assert all(smallest <= len(batch) < 4 + smallest for batch in batches)
    plain = [x[:, 0].tolist() for x, _ in numbered(num).epoch(4, np.random.default_rng(0), device=CPU)]
    if num % 4 == 0 or num % 4 >= smallest:
        assert batches == plain
    assert list(chain(*batches)) == (list(chain(*plain)) if num >= smallest else [])


@pytest.mark.parametrize(("num", "steps"), [(0, 0), (1, 0), (2, 2), (4, 2), (5, 2), (6, 4)])
def test_batch_norm_trains_whatever_the_number_of_examples(num: int, steps: int) -> None:
    local = LocalTraining(lr=0.1, epochs=2, batch_size=4)
    bench = dense_bench()
    before = bench.read()
    trained = train(bench, numbered(num), local=local, loss=CrossEntropy(), lr=0.1, order=np.random.default_rng(0))
    assert trained.num_steps == steps
    assert (bench.read().digest() == before.digest()) is (steps == 0)


def test_a_client_with_one_example_counts_as_one_without_under_batch_norm(tmp_path: Path) -> None:
    sizes = [1, 17, 0, 42]  # 17 and 42 = 2·16 + 10: one last batch of one, one of ten
    write_parts(np.split(np.arange(60), np.cumsum(sizes)[:-1]), tmp_path / "parts.json")
    e = experiment(
        data=Data(examples=60), partition=Stored(path=str(tmp_path / "parts.json"), clients=4), calibration=Ffc()
    )
    result = run_to_end(e, tmp_path / "run")
    assert np.isfinite(list(result["accuracy"]["calibrated"].values())).all()
    assert [line["num_examples"] for line in read_lines(tmp_path / "run" / "rounds.jsonl")] == [59, 59]
    refused = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert [(line["client"], line["round"]) for line in refused] == [(0, 2)]  # its statistics would reveal it
    group = replace(e, model=Model(encoder=SmallNet(norm="group")))
    run_to_end(group, tmp_path / "group")
    assert [line["num_examples"] for line in read_lines(tmp_path / "group" / "rounds.jsonl")] == [60, 60]


def test_a_federation_of_single_examples_moves_nothing_under_batch_norm(tmp_path: Path) -> None:
    write_parts([np.array([i]) for i in range(3)], tmp_path / "parts.json")
    e = experiment(data=Data(examples=3), partition=Stored(path=str(tmp_path / "parts.json"), clients=3))
    assembly = assemble(e)
    initial = assembly.initial()
    for done in federate(InProcess(assembly.client, 3), initial, assembly.plan()):
        assert done.num_examples == 0
        assert not done.refused
        assert done.model.digest() == initial.digest()


def test_batches_of_one_are_refused_under_batch_norm() -> None:
    local = LocalTraining(lr=0.1, batch_size=1)
    with pytest.raises(ConfigError, match=r"'smallnet' has BatchNorm.*at least 2, got 1.*norm = 'group'"):
        assemble(experiment(local=local))
    assemble(experiment(local=local, model=Model(encoder=SmallNet())))
