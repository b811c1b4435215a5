"""Accuracy on digits against label skew: FedAvg and SphereFed fall as α falls, one-shot FFC has the same bits.

python benchmarks/skew.py           prints the table
python benchmarks/skew.py --write   also writes docs/figures/accuracy-against-skew.svg and the table in docs/one-shot.md
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from sections import write_section

import spherefed as sf
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.data.partition import Dirichlet, Iid, Partitioner
from spherefed.experiment import Experiment

DOCS = Path(__file__).parent.parent / "docs"
FIGURE = DOCS / "figures" / "accuracy-against-skew.svg"
SEEDS = (0, 1, 2)
CLIENTS = 10
SKEWS: dict[str, Partitioner] = {
    **{f"{alpha:g}": Dirichlet(alpha=alpha, clients=CLIENTS) for alpha in (0.01, 0.03, 0.1, 0.3, 1.0)},
    "IID": Iid(clients=CLIENTS),
}
METHODS = {"FedAvg": "fedavg", "SphereFed": "fedavg+spherefed", "one-shot FFC, random features": "fedavg+one-shot"}
STYLES = {
    "FedAvg": ("#d55e00", "s--"),
    "SphereFed": ("#0072b2", "o-"),
    "one-shot FFC, random features": ("#009e73", "D-"),
}
Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Method → skew → one result for each seed."""


def main() -> None:
    results = {name: {skew: _results(method, skew) for skew in SKEWS} for name, method in METHODS.items()}
    table = _table(results)
    print(table)
    if "--write" in sys.argv[1:]:
        FIGURE.write_text(_figure(results), encoding="utf-8")
        table = f"![Accuracy on digits against label skew](figures/{FIGURE.name})\n\n{table}"
        write_section("one-shot.md", "skew", table)


def _results(method: str, skew: str) -> list[dict[str, Any]]:
    return [_result(_experiment(method, skew, seed)) for seed in SEEDS]


def _experiment(method: str, skew: str, seed: int) -> Experiment:
    found = sf.recipe("digits", method=method, seed=seed)
    return replace(found, partition=SKEWS[skew], min_samples=1)


def _result(experiment: Experiment) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        summary = sf.run(experiment, out=Path(folder) / "run").summary
    print(f"{experiment.partition}, seed {experiment.seed}: {summary['accuracy']}", file=sys.stderr)
    return dict(summary)


def _accuracies(results: list[dict[str, Any]]) -> list[float]:
    stages = [result["accuracy"] for result in results]
    return [100 * stage.get("calibrated", stage["trained"])[GLOBAL_TEST] for stage in stages]


def _table(results: Results) -> str:
    lines = [f"| method | {' | '.join(f'α = {skew}' if skew != 'IID' else skew for skew in SKEWS)} | same bits |"]
    lines.append("|" + "---|" * (len(SKEWS) + 2))
    for name, by_skew in results.items():
        values = " | ".join(f"{mean(_accuracies(by_skew[skew])):.1f}" for skew in SKEWS)
        lines.append(f"| {name} | {values} | {'yes' if _same_bits(by_skew) else 'no'} |")
    return "\n".join(lines)


def _same_bits(by_skew: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether every seed has one head for all skews."""
    heads = [{by_skew[skew][index]["weights_sha256"] for skew in SKEWS} for index in range(len(SEEDS))]
    return all(len(found) == 1 for found in heads)


def _figure(results: Results) -> str:
    """As SVG; equal results give equal text."""
    import io

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "skew", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(6.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, by_skew in results.items():
            colour, style = STYLES[name]
            runs = [_accuracies(by_skew[skew]) for skew in SKEWS]
            axes.plot(range(len(SKEWS)), [mean(each) for each in runs], style, color=colour, label=name, markersize=5)
            low, high = ([pick(each) for each in runs] for pick in (min, max))
            axes.fill_between(range(len(SKEWS)), low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xticks(range(len(SKEWS)), list(SKEWS))
        axes.set_xlabel("α of the Dirichlet partition: less is more label skew")
        axes.set_ylabel("test accuracy, %")
        axes.set_title(f"digits, {CLIENTS} clients, mean and range of {len(SEEDS)} seeds", loc="left", fontsize=9)
        axes.grid(axis="y", color="#d9d9d9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


if __name__ == "__main__":
    main()
