"""The results of several methods over several seeds."""

import html
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherefed.api.result import Result
from spherefed.api.tables import curve_figure, data_frame
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.errors import ConfigError
from spherefed.report.summary import estimate
from spherefed.schema import suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Comparison:
    """Finished runs of several methods on the same partitions: `comparison["fedavg"]` lists those of one method."""

    def __init__(self, path: Path, results: Mapping[str, list[Result]]) -> None:
        self.path = path
        """The folder of the runs, for `spherefed report`."""
        self.results = dict(results)
        """Method → one result per seed."""

    def __getitem__(self, method: str) -> list[Result]:
        if method not in self.results:
            raise ConfigError(f"no method {method!r} in this comparison; {suggest(str(method), self.results)}")
        return self.results[method]

    @property
    def accuracy(self) -> dict[str, float]:
        """Method → mean accuracy of the final model over seeds."""
        return {name: statistics.fmean(r.accuracy for r in results) for name, results in self.results.items()}

    def records(self) -> list[dict[str, Any]]:
        """One dict per method and seed: measures of the final model, accuracy before calibration, bytes and seconds."""
        return [
            {
                "method": name,
                "seed": result.experiment.seed,
                "accuracy": result.accuracy,
                **{name: _final(result, name) for name in ("balanced_accuracy", "macro_f1")},
                "trained": result.accuracies["trained"].get(GLOBAL_TEST),
                "rounds": result.rounds,
                "bytes_up": sum(each["up"] for each in result.summary["traffic"].values()),
                "seconds": sum(result.summary["seconds"].values()),
            }
            for name, results in self.results.items()
            for result in results
        ]

    def curves(self) -> list[dict[str, Any]]:
        """One dict per method, seed and round, as in `Result.records`."""
        return [
            {"method": name, "seed": result.experiment.seed, **record}
            for name, results in self.results.items()
            for result in results
            for record in result.records()
        ]

    def frame(self) -> Any:
        """`records` as a pandas DataFrame; `pandas.DataFrame(comparison.curves())` has the rounds."""
        return data_frame(self.records())

    def plot(self) -> "Figure":
        """Accuracy per round of each method: the mean and the range over seeds; dashed: calibrated models."""
        curves = {
            name: [{r["round"]: r["accuracy"] for r in each.records() if r["accuracy"] is not None} for each in results]
            for name, results in self.results.items()
        }
        calibrated = {
            name: statistics.fmean(each.accuracies["calibrated"][GLOBAL_TEST] for each in results)
            for name, results in self.results.items()
            if all(GLOBAL_TEST in each.accuracies.get("calibrated", {}) for each in results)
        }
        return curve_figure(curves, calibrated)

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {_spread(results)}" for name, results in self.results.items())
        return f"Comparison({str(self.path)!r}: {means})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{_spread(results)}</td><td>{len(results)}</td></tr>"
            for name, results in self.results.items()
        )
        return f"<table><tr><th>method</th><th>accuracy</th><th>seeds</th></tr>{rows}</table>"


def _final(result: Result, measure: str) -> float | None:
    """A measure of the final model on the test set."""
    value: float | None = list(result.measures.values())[-1].get(GLOBAL_TEST, {}).get(measure)
    return value


def _spread(results: list[Result]) -> str:
    """Mean ± half-width of the 95 % confidence interval, as in reports."""
    found = estimate([result.accuracy for result in results])
    spread = "" if found.half_width is None else f" ± {found.half_width:.2%}"
    return f"{found.mean:.2%}{spread}"
