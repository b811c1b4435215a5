"""Who does the work: a bare PyTorch loop, and this library in each of its modes.

A contestant is made from an experiment and a folder; `rounds` is resumed once per round, `loss` is asked at the end.
"""

import copy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional
from workloads import Material, training_loss

from spherefed.experiment import Experiment
from spherefed.runner import Engine, load, run


class Bare:
    """The plainest fast PyTorch loop: one module, one `torch.optim.SGD` per client, weighted state dicts."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._material = Material.of(experiment)
        self._net = copy.deepcopy(self._material.net)

    def rounds(self) -> Iterator[None]:
        m, net = self._material, self._net
        net.load_state_dict(m.net.state_dict())
        torch.manual_seed(123)
        data = [(m.inputs[part], m.labels[part]) for part in m.parts]
        model = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        for cohort in m.cohorts:
            num_examples = sum(len(m.parts[client]) for client in cohort)
            total = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
            net.train()
            for client in cohort:
                inputs, labels = data[client]
                net.load_state_dict(model)
                optimizer = torch.optim.SGD(net.parameters(), lr=m.lr, momentum=m.momentum)
                order = torch.randperm(len(labels))
                for start in range(0, len(labels), m.batch_size):
                    chosen = order[start : start + m.batch_size]
                    optimizer.zero_grad(set_to_none=True)
                    functional.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
                    optimizer.step()
                for name, tensor in net.state_dict().items():
                    total[name].add_(tensor, alpha=len(labels) / num_examples)
            model = total
            net.load_state_dict(model)
            self._evaluate()
            yield

    @torch.no_grad()
    def _evaluate(self) -> int:
        m = self._material
        self._net.eval()
        batches = zip(m.test_inputs.split(500), m.test_labels.split(500), strict=True)
        return sum(int((self._net(x).argmax(1) == y).sum()) for x, y in batches)

    def loss(self) -> float:
        return training_loss(self._net, self._material)


class Ours:
    """`spherefed.runner.run` as anybody calls it, with its run directory, its lines and its checkpoints."""

    def __init__(self, experiment: Experiment, folder: Path, **engine: int) -> None:
        self._experiment = experiment
        self._engine = Engine(**engine)  # type: ignore[arg-type]
        self._folder = folder

    def rounds(self) -> Iterator[None]:
        shutil.rmtree(self._folder, ignore_errors=True)
        for _ in run(self._experiment, self._folder, engine=self._engine):
            yield

    def loss(self) -> float:
        return training_loss(load(self._folder), Material.of(self._experiment))


def contestant(name: str, experiment: Experiment, folder: Path) -> Bare | Ours:
    """By the name that the table shows."""
    match name.split():
        case ["bare"]:
            return Bare(experiment, folder)
        case ["default"]:
            return Ours(experiment, folder)
        case ["workers", number]:
            return Ours(experiment, folder, workers=int(number))
        case ["checkpoint", number]:
            return Ours(experiment, folder, checkpoint_every=int(number))
        case ["stacked" | "compile" | "bf16", *size]:
            change = {"compile": {"compile": True}, "bf16": {"precision": "bf16"}}.get(name)
            return Ours(replace(experiment, **(change or {"stack": int(size[0])})), folder)
        case _:
            raise ValueError(f"no contestant {name!r}")
