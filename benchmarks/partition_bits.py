"""One head for every partition: SHA-256 of the one-shot head for numbers of clients, label skews and engines.

python benchmarks/partition_bits.py --data-root DIR           prints the table, one line for each data set and engine
python benchmarks/partition_bits.py --data-root DIR --write   also writes it into docs/one-shot.md

Options --engines, --data and --clients choose a part of it. The heads that were found are kept in a file (--heads), so
that the table can be made in several calls; it has all of them. The engine `flower` is the local one with every request
and reply encoded and decoded as between sites.
"""

import argparse
import json
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
from spherefed.recipes.experiments import cifar100_one_shot, digits_one_shot
from spherefed.runs.directory import RunDirectory
from spherefed.runs.environment import describe_environment
from spherefed.runs.runner import Engine, run_assembled, run_to_end

ALPHAS = (0.01, 0.1, 1.0, None)
"""None: IID."""
NUMBERS = (1, 10, 100, 1000)
"""Numbers of clients."""
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
    parser.add_argument("--clients", default=",".join(map(str, NUMBERS)))
    parser.add_argument("--heads", type=Path, default=Path("one-shot-heads.json"), help="Heads that were found before.")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = json.loads(given.heads.read_text(encoding="utf-8")) if given.heads.exists() else {}
    for data in (name for name in DATA if given.data in name):
        for engine in given.engines.split(","):
            for number in map(int, given.clients.split(",")):
                for alpha in ALPHAS:
                    key = _key(data, engine, number, alpha)
                    if key not in found:
                        found[key] = _head(data, engine, number, alpha, given.data_root)
                        print(f"{key}: {found[key]}", file=sys.stderr, flush=True)
                        given.heads.write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = _table(found)
    print(text)
    if given.write:
        write_section("one-shot.md", "bits", text)


def _table(found: dict[str, str]) -> str:
    """One line for each data set and engine, or more if some numbers of clients were tried with fewer skews."""
    lines = ["| data | engine | clients | α | different heads | SHA-256 |", "|---|---|---|---|---|---|"]
    for data in DATA:
        for engine in ENGINES:
            tried: dict[str, list[int]] = {}
            for number in NUMBERS:
                alphas = [_name(alpha) for alpha in ALPHAS if _key(data, engine, number, alpha) in found]
                tried.setdefault(", ".join(alphas), []).append(number)
            for alphas, numbers in tried.items():
                heads = {found.get(_key(data, engine, number, alpha)) for number in numbers for alpha in ALPHAS} - {
                    None
                }
                if heads:
                    clients = ", ".join(map(str, numbers))
                    lines.append(f"| {data} | {engine} | {clients} | {alphas} | {len(heads)} | {_short(heads)} |")
    return "\n".join(lines)


def _short(heads: "set[str | None]") -> str:
    return ", ".join(f"`{head[:16]}…`" for head in sorted(filter(None, heads)))


def _name(alpha: float | None) -> str:
    return "IID" if alpha is None else f"{alpha:g}"


def _key(data: str, engine: str, num_clients: int, alpha: float | None) -> str:
    return f"{data}, {engine}, K = {num_clients}, α = {_name(alpha)}"


def _head(data: str, engine: str, num_clients: int, alpha: float | None, data_root: str) -> str:
    recipe, settings = DATA[data]
    experiment = replace(with_settings(recipe(), settings), partition=_partition(num_clients, alpha), min_samples=1)
    with tempfile.TemporaryDirectory() as folder:
        return _weights(experiment, engine, Path(folder) / "run", data_root)


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
