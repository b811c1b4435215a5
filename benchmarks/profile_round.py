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
from collections.abc import Callable, Iterable, Iterator
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

from spherefed import admission, algorithms, assembly, client, messages, runs, stacking, training, workbench
from spherefed.data.examples import Examples
from spherefed.nn import chain
from spherefed.runner import run

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
    trained = training.Trained(1, 0.5)
    held: dict[str, Any] = {}

    def once(name: str, make: Callable[[], Any]) -> Any:
        if name not in held:
            held[name] = make()
        return held[name]

    def zeros(like: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.zeros_like(tensor, requires_grad=False) for tensor in like]

    def no_gradient(self: chain.Chain, inputs: torch.Tensor, labels: torch.Tensor, _: object) -> Any:
        return once("gradient", lambda: (torch.zeros(()), zeros(self.trained)))

    def one_batch(self: Examples, *_: object, **__: object) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size = len(self)
        yield once(f"batch {size}", lambda: (torch.zeros(size, 1, 8, 8), torch.arange(size) % 10))

    def no_steps(
        stack: stacking.Stack, clients: list[client.Client], _: int, seen: list[tuple[torch.Tensor, list[int]]]
    ) -> Iterator[Any]:
        seen.append((torch.zeros(len(clients)), [len(each.examples) for each in clients]))
        yield once("gradient", lambda: zeros(stack.params.values())), len(clients)

    if stack:
        return {
            "the clients' batches, gradients and updates": [(stacking, "_steps", no_steps)],
            "… random streams": [(stacking, "stream", lambda *_: rng)],
            "laying the model": [(stacking.Stack, "lay", lambda *_: None)],
        }
    return {
        "all of the clients' training": [(client, "train", lambda *_, **__: trained)],
        "… gradients": [(chain.Chain, "gradient", no_gradient)],
        "… batches": [(Examples, "epoch", one_batch)],
        "random streams": [(client, "stream", lambda *_: rng)],
        "laying the model": [(workbench.Workbench, "lay", lambda *_: None)],
    }


def parts(stack: int) -> Parts:
    return {
        **parts_of_training(stack),
        "admission": [(admission, "_fault", lambda *_: None)],
        "weighing the traffic": [(messages.Traffic, "received", lambda *_: None)],
        "Eq. 2 and 3": [(algorithms, "Consistency", _NoConsistency)],
        "evaluation": [(assembly.Assembly, "global_accuracy", lambda *_: 0.5)],
        "the round's line": [(runs.RunDirectory, "append_round", lambda *_: None)],
        "checkpoint": [(runs.RunDirectory, "save_checkpoint", lambda *_: None)],
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
                torch._foreach_add_(values, training.gradient_of(loss, weights), alpha=-m.lr)
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
        ours = run(replace(work.experiment, rounds=NUM_ROUNDS, stack=given.stack), Path(folder) / "run")
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
