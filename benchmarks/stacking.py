"""Where it pays to stack clients: CPU time of a round by size of the model, as a ratio to clients one by one.

python benchmarks/stacking.py --repetitions 8
"""

import argparse
import os
import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import torch

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.acceleration.stacked_model import suggested_stack
from spherefed.assembly import Assembly, build_parts
from spherefed.client.training import LocalTraining
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.partition import Iid, Partition
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, Model
from spherefed.nn.encoders import Encoder, Mlp, SmallNet
from spherefed.server.federation import federate

CLIENTS, EXAMPLES, CLASSES = 10, 2000, 10
MODELS: list[tuple[Encoder, tuple[int, ...]]] = [
    *((Mlp(widths=widths), (1, 8, 8)) for widths in ((32,), (64,), (256,), (512,), (256, 256), (512, 512))),
    (Mlp(widths=(128,)), (1, 28, 28)),
    (SmallNet(norm="group"), (1, 8, 8)),
    (SmallNet(norm="group"), (3, 32, 32)),
]
SIZES = (0, 5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=8)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    keep_freed_memory()
    print(
        "| encoder | input | parameters | examples per client | one by one, ms | stack 5 | stack 10 | default |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for encoder, shape in MODELS:
        for each in (14, 140):
            print(_line(encoder, shape, each, repetitions), flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _line(encoder: Encoder, shape: tuple[int, ...], each: int, repetitions: int) -> str:
    assemblies = {size: _assembly(encoder, shape, each, repetitions + 2, size) for size in SIZES}
    rounds = {size: _rounds(assembly) for size, assembly in assemblies.items()}
    seconds = [{size: _timed(turn) for size, turn in rounds.items()} for _ in range(repetitions + 2)][2:]
    plain = median(turn[0] for turn in seconds)
    ratios = [median(turn[size] / turn[0] for turn in seconds) for size in SIZES[1:]]
    local_model = assemblies[0].local_model
    number = sum(p.numel() for p in local_model.params.values())
    name = f"{encoder.kind} {'-'.join(map(str, encoder.widths))}" if isinstance(encoder, Mlp) else encoder.kind
    cells = [name, "×".join(map(str, shape)), f"{number:,}", str(each), f"{1e3 * plain:.1f}"]
    default = suggested_stack(local_model.classifier, CLIENTS)
    return f"| {' | '.join([*cells, *(f'{ratio:.2f}' for ratio in ratios), str(default)])} |"


def _assembly(encoder: Encoder, shape: tuple[int, ...], each: int, num_rounds: int, stack: int) -> Assembly:
    """Clients with half to one and a half times so many examples."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(EXAMPLES, *shape))).float()
    examples = Examples(inputs, torch.arange(EXAMPLES) % CLASSES)
    data = Dataset(name="noise", train=examples, test=examples, classes=tuple(map(str, range(CLASSES))))
    experiment = Experiment(
        name="stacking",
        rounds=num_rounds,
        stack=stack,
        partition=Iid(clients=CLIENTS),
        model=Model(encoder=encoder),
        local=LocalTraining(lr=0.01, epochs=1, batch_size=32),
    )
    sizes = np.linspace(0.5 * each, 1.5 * each, CLIENTS).astype(int)
    parts = tuple(rng.permutation(EXAMPLES)[:size] for size in sizes)
    partition = Partition(parts, np.zeros((CLIENTS, CLASSES), np.int64))
    return build_parts(experiment, data, partition)


def _rounds(assembly: Assembly) -> Iterator[object]:
    return federate(InProcess(assembly.clients), assembly.initial(), assembly.plan())


def _timed(rounds: Iterator[object]) -> float:
    began = time.process_time()
    next(rounds)
    return time.process_time() - began


if __name__ == "__main__":
    main()
