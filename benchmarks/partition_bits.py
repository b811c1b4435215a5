"""One head for every partition: SHA-256 of the one-shot head for numbers of clients, label skews and engines.

python benchmarks/partition_bits.py --data-root DIR           prints the table, one line for each data set and engine
python benchmarks/partition_bits.py --data-root DIR --write   also writes it into docs/one-shot.md

Options --engines, --data and --clients choose a part of it. The engine `flower` is the local one with every request and
reply encoded and decoded as between sites.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sections import write_section

from spherefed.assembly import assemble
from spherefed.data.partition import Dirichlet, Iid, Partitioner
from spherefed.deployment.app import MESSAGE_TYPES, REPLY_TYPES
from spherefed.engines.flower_codec import decode, encode
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, with_settings
from spherefed.messages import Failure, Reply, Request
from spherefed.recipes.one_shot import cifar100_one_shot, digits_one_shot
from spherefed.runs.directory import RunDirectory
from spherefed.runs.environment import describe_environment
from spherefed.runs.runner import Engine, run_assembled, run_to_end

ALPHAS = (0.01, 0.1, 1.0, None)
"""None: IID."""
ENGINES = {"local": Engine(), "workers": Engine(workers=2), "ray": Engine(kind="ray", workers=1), "flower": None}
DATA = {
    "digits, 256 random features": (digits_one_shot, ["model.feature_map.dim=256"]),
    "10,000 images of CIFAR-100, Lite0": (cifar100_one_shot, ["data.examples=10000"]),
}


class Coded(InProcess):
    """Clients of this process; every request and every reply is encoded and decoded."""

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        for reply in super().ask(clients, decode(encode(request), MESSAGE_TYPES)):
            yield decode(encode(reply), REPLY_TYPES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--data", default="", help="Only data whose name contains this text.")
    parser.add_argument("--clients", default="1,10,100,1000")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    counts = [int(number) for number in given.clients.split(",")]
    lines = ["| data | engine | clients | α | different heads | SHA-256 |", "|---|---|---|---|---|---|"]
    for data in (name for name in DATA if given.data in name):
        for engine in given.engines.split(","):
            heads = {_head(data, engine, number, alpha, given.data_root) for number in counts for alpha in ALPHAS}
            tried = " | ".join([", ".join(map(str, counts)), "0.01, 0.1, 1, IID"])
            lines.append(f"| {data} | {engine} | {tried} | {len(heads)} | `{sorted(heads)[0][:16]}…` |")
    text = "\n".join(lines)
    print(text)
    if given.write:
        write_section("one-shot.md", "bits", text)


def _head(data: str, engine: str, num_clients: int, alpha: float | None, data_root: str) -> str:
    recipe, settings = DATA[data]
    experiment = replace(with_settings(recipe(), settings), partition=_partition(num_clients, alpha), min_samples=1)
    with tempfile.TemporaryDirectory() as folder:
        found = _weights(experiment, engine, Path(folder) / "run", data_root)
    print(f"{data}, {engine}, K = {num_clients}, α = {alpha or 'IID'}: {found}", file=sys.stderr, flush=True)
    return found


def _partition(num_clients: int, alpha: float | None) -> Partitioner:
    return Iid(clients=num_clients) if alpha is None else Dirichlet(alpha=alpha, clients=num_clients)


def _weights(experiment: Experiment, name: str, out: Path, data_root: str) -> str:
    engine = ENGINES[name]
    if engine is not None:
        result = run_to_end(experiment, out, engine=replace(engine, data_root=data_root))
        return str(result["weights_sha256"])
    assembly = assemble(experiment, data_root=data_root)
    environment = describe_environment(assembly.experiment, engine="local", device="cpu", workers=0)
    for _ in run_assembled(assembly, lambda _: Coded(assembly.clients, None), out, environment=environment):
        pass
    return str(RunDirectory(out).result()["weights_sha256"])


if __name__ == "__main__":
    main()
