"""Where a round of the overhead-bound workload spends its CPU time, part by part, next to a bare loop.

python benchmarks/profile_round.py --stack 10 --repetitions 100

A part's share is what a round saves when that part is replaced by nothing, each such round beside a whole one:
profilers distort work that consists of many short calls. Parts overlap a little and what follows a part finds other
things in the caches, so they need not add up.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import bare
import numpy as np
import torch
from material import Material
from torch.nn import functional
from workloads import material_of, workload

from spherefed import messages
from spherefed.acceleration import chain, gradients, stacked_model
from spherefed.client import handle, local_model, training
from spherefed.runs import round_log, runner
from spherefed.server import aggregation, validation

NUM_ROUNDS = 1_000_000
"""More than anybody waits for."""


class _NoConsistency:
    def __init__(self, head: object) -> None: ...
    def add(self, delta: object) -> None: ...
    def summary(self) -> None: ...


Parts = dict[str, list[tuple[Any, str, Any]]]
"""What is replaced by what, by the name of the part."""


def parts_of_training(stack: int) -> Parts:
    rng = np.random.default_rng(0)
    once: dict[str, Any] = {}

    def no_gradient(self: chain.Chain, _: object, inputs: torch.Tensor, labels: torch.Tensor, weights: object) -> Any:
        value = torch.zeros(()) if weights is None else torch.zeros(len(labels))
        return once.setdefault(f"gradient {len(labels)}", (value, [torch.zeros_like(w) for w in self.trained]))

    def no_training(_: object, examples: list[object], *__: object, **___: object) -> list[training.Trained]:
        return [training.Trained(1, 1.0, 0.5) for _ in examples]

    model = (stacked_model.StackedModel, "load") if stack else (local_model.LocalModel, "load_state")
    gradient: Parts = {} if stack else {"… gradients": [(chain.Chain, "value_and_grad", no_gradient)]}
    return {
        "all of the clients' training": [(handle, "train", no_training)],
        **gradient,
        "random streams": [(handle, "stream", lambda *_: rng)],
        "loading the model": [(*model, lambda *_: None)],
    }


def no_line(log: round_log.RoundLog, line: dict[str, Any], _: object) -> None:
    """Write nothing, but know the digests that the next checkpoint needs."""
    for growing in log._digests.values():
        growing.mark(line["round"] + 1)


def parts(stack: int) -> Parts:
    return {
        **parts_of_training(stack),
        "validation of replies": [(validation, "check_reply", lambda *_: validation.Checked(None, {"delta": 1.0}))],
        "counting the traffic": [(messages.Traffic, "received", lambda *_: None)],
        "Eq. 2 and 3": [(aggregation, "Consistency", _NoConsistency)],
        "evaluation": [(runner, "global_measures", lambda *_: {"accuracy": {}})],
        "the round's JSON line": [(round_log.RoundLog, "append_round", no_line)],
        "checkpoint": [(round_log.RoundLog, "save_checkpoint", lambda *_: None)],
    }


def steps_only(material: Material) -> Iterator[None]:
    """The floor for clients one by one through `nn.Module` and autograd: their steps, a sum, evaluation, no more."""
    m, net = material, material.fresh()
    weights = tuple(net.parameters())
    values = [w.detach() for w in weights]
    model = [v.clone() for v in values]
    for cohort in m.cohorts:
        total = [torch.zeros_like(v) for v in values]
        num_examples = sum(len(m.parts[number]) for number in cohort)
        for number in cohort:
            torch._foreach_copy_(values, model)
            order = m.parts[number][torch.randperm(len(m.parts[number]))]
            for chosen in order.split(m.batch_size):
                scores = net(m.inputs.index_select(0, chosen))
                loss = functional.cross_entropy(scores, m.labels.index_select(0, chosen))
                torch._foreach_add_(values, list(gradients.gradient_of(loss, weights)), alpha=-m.lr)
            torch._foreach_add_(total, values, alpha=len(order) / num_examples)
        model = total
        torch._foreach_copy_(values, model)
        with torch.no_grad():
            int((net(m.test_inputs).argmax(1) == m.test_labels).sum())
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--stack", type=int, default=0, help="clients that train as one; 0: one by one")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = workload("overhead", Path(folder))
        enough = replace(work, experiment=replace(work.experiment, rounds=given.repetitions + work.warm_up))
        material = material_of(enough)
        plain, floor = bare.rounds(material, material.fresh()), steps_only(material)
        ours = runner.run(replace(work.experiment, rounds=NUM_ROUNDS, stack=given.stack), Path(folder) / "run")
        for _ in range(work.warm_up):
            next(plain), next(floor), next(ours)
        saved: dict[str, list[float]] = {name: [] for name in parts(given.stack)}
        bares, floors, whole = [], [], []
        for _ in range(given.repetitions):
            bares.append(_timed(lambda: next(plain)))
            floors.append(_timed(lambda: next(floor)))
            next(ours)  # after the others, the first round finds nothing of ours in the caches
            for name, replaced in parts(given.stack).items():
                whole.append(_timed(lambda: next(ours)))
                with _patched(replaced):
                    saved[name].append(whole[-1] - _timed(lambda: next(ours)))
        ours.close()  # type: ignore[attr-defined]
    usual, loop = median(whole), median(bares)
    print(f"| part of a round | CPU, ms | of {1e3 * usual:.2f} |\n|---|---|---|")
    for name, differences in saved.items():
        print(f"| {name} | {1e3 * median(differences):.2f} | {median(differences) / usual:.0%} |")
    lowest = median(floors) / loop
    print(
        f"\na bare loop takes {1e3 * loop:.2f} ms; the ratio to it is {usual / loop:.2f}, of steps alone {lowest:.2f}"
    )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


@contextmanager
def _patched(replaced: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
