"""Write TensorBoard event files into the run directory, so that `tensorboard --logdir runs` finds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spherefed.tracking.values import Values, parameters

FOLDER = "tensorboard"
SECONDS_BETWEEN_WRITES = 10
MEASURE = "final/accuracy"
"""Names with this prefix are the measures of TensorBoard's table of hyper-parameters."""


class TensorBoardWriter:
    """The event files of one run. They are written anew when a run is resumed, from its first round."""

    def __init__(self, run: Path, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        del name  # TensorBoard shows the path
        folder = run / FOLDER
        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._writer = SummaryWriter(str(folder), flush_secs=SECONDS_BETWEEN_WRITES)
        self._parameters: dict[str, str] = {}

    def start(self, experiment: Mapping[str, Any]) -> None:
        self._parameters = parameters(experiment)
        self._writer.add_text("experiment", _code(json.dumps(experiment, indent=2, ensure_ascii=False)))

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, values: Values, table: str, run: Path) -> None:
        from torch.utils.tensorboard.summary import hparams

        del run
        step = int(values.get("final/rounds", 0))
        self.log(values, step)
        self._writer.add_text("table", table, step)
        # In this event file; `add_hparams` would make a second run of it.
        measures = {name: value for name, value in values.items() if name.startswith(MEASURE)}
        events: Any = self._writer.file_writer
        for summary in hparams(self._parameters, measures):  # type: ignore[no-untyped-call]
            events.add_summary(summary)

    def close(self, *, finished: bool) -> None:
        del finished
        self._writer.close()


def write_table(folder: Path, table: str) -> None:
    """The table of a comparison, in event files of its folder."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / FOLDER)) as writer:
        writer.add_text("table", table)


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
