"""The result of a run, read from its run directory."""

import html
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from spherefed.api.tables import curve_figure, data_frame
from spherefed.client.evaluation import GLOBAL_TEST, LOCAL_TEST_BY_CLIENTS, PERSONAL_TEST_BY_CLIENTS
from spherefed.errors import RunError
from spherefed.experiment import Experiment, read_experiment
from spherefed.nn.classifier import Classifier
from spherefed.runs.directory import RunDirectory
from spherefed.runs.loading import load
from spherefed.runs.round_log import ROUNDS, read_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCURACIES = (GLOBAL_TEST, PERSONAL_TEST_BY_CLIENTS, LOCAL_TEST_BY_CLIENTS)
"""The accuracies of a run, the one that is reported first."""
MEASURES = ("balanced_accuracy", "macro_f1", "recall")
"""The other measures of a round."""


class Result:
    """A finished run: accuracies, curves and the model.

    `encoder` is the module of a run that was given one; a run without `out` keeps its folder while its result lives.
    """

    def __init__(
        self, path: str | Path, *, encoder: nn.Module | None = None, folder: "OutputFolder | None" = None
    ) -> None:
        self.path = Path(path)
        """The run directory."""
        self._folder = folder  # a temporary folder is removed when no result needs it any longer
        self._encoder = encoder
        self._result = RunDirectory(self.path).result()

    @property
    def accuracy(self) -> float:
        """The accuracy of the final model: on the test set, or on the clients' own data where there is no test set."""
        final = list(self.accuracies.values())[-1]
        measured = [name for name in ACCURACIES if name in final]
        if not measured:
            raise RunError(f"{self.path} measured no accuracy; it has {', '.join(final) or 'none'}")
        return final[measured[0]]

    @property
    def accuracies(self) -> dict[str, dict[str, float]]:
        """Every accuracy: stage (trained, calibrated) → what was tested → value."""
        found: dict[str, dict[str, float]] = self._result["accuracy"]
        return found

    @property
    def measures(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Measures for unequal classes: stage → what was tested → balanced_accuracy, macro_f1, recall (per class)."""
        found: dict[str, dict[str, dict[str, Any]]] = self._result.get("measures", {})
        return found

    @property
    def summary(self) -> dict[str, Any]:
        """The content of result.json: accuracies, calibration, traffic and seconds."""
        return self._result

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self._result["rounds"])

    @cached_property
    def experiment(self) -> Experiment:
        return read_experiment(self.path)

    @cached_property
    def model(self) -> Classifier:
        """The final, calibrated module in eval mode."""
        return load(self.path, encoder=self._encoder)

    def records(self) -> list[dict[str, Any]]:
        """One dict per round: loss, learning rate, seconds, clients, bytes, and measures on the test set.

        accuracy, balanced_accuracy, macro_f1 and recall (a list with one value per class) are None if not evaluated.
        """
        return [
            {
                "round": line["round"] + 1,
                "loss": line["loss"],
                "accuracy": line["accuracy"].get(GLOBAL_TEST),
                **{name: line.get("measures", {}).get(GLOBAL_TEST, {}).get(name) for name in MEASURES},
                "lr": line["lr"],
                "seconds": line["seconds"],
                "clients": len(line["clients"]),
                "bytes_down": sum(line["bytes_down"].values()),
                "bytes_up": sum(line["bytes_up"].values()),
            }
            for line in read_lines(self.path / ROUNDS)
        ]

    def frame(self) -> Any:
        """`records` as a pandas DataFrame."""
        return data_frame(self.records())

    def plot(self) -> "Figure":
        """A figure of the accuracy after every evaluated round; a dashed line shows the calibrated model."""
        curve = {record["round"]: record["accuracy"] for record in self.records() if record["accuracy"] is not None}
        calibrated = self.accuracies.get("calibrated", {}).get(GLOBAL_TEST)
        return curve_figure({self.experiment.name: [curve]}, {self.experiment.name: calibrated})

    def __repr__(self) -> str:
        return f"Result({str(self.path)!r}, accuracy={self.accuracy:.2%}, rounds={self.rounds})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(stage)}</td><td>{html.escape(name)}</td><td>{value:.2%}</td></tr>"
            for stage, values in self.accuracies.items()
            for name, value in values.items()
        )
        caption = html.escape(f"{self.experiment.name}, {self.rounds} rounds, {self.path}")
        head = "<tr><th>model</th><th>tested on</th><th>accuracy</th></tr>"
        return f"<table><caption>{caption}</caption>{head}{rows}</table>"


class OutputFolder:
    """The folder of a run. A temporary one is removed when nobody refers to this object any longer."""

    def __init__(self, out: str | Path | None) -> None:
        if out is not None:
            if not isinstance(out, str | Path):
                raise RunError(f"out must be the path of a folder, got {out!r}; for example out='runs/mine'")
            self.path = Path(out)
            return
        temporary = tempfile.mkdtemp(prefix="spherefed-")
        self.path = Path(temporary) / "run"
        self._remove = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
