"""The two apps that Flower starts by name: `spherefed.deployment.app:server_app` and `…:client_app`."""

from collections.abc import Callable, Mapping
from typing import Any

from spherefed.deployment.roll_call import Adopt, Adopted, Present, RollCall
from spherefed.deployment.server import Order, serve
from spherefed.deployment.site import Site, answer
from spherefed.engines import flower
from spherefed.errors import SpherefedError
from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Failure,
    Measure,
    MeasureReply,
    Reestimate,
    ReestimateReply,
    Train,
    TrainReply,
)

QUESTIONS = {kind.__name__: kind for kind in (RollCall, Adopt, Train, Measure, Reestimate, Evaluate)}
ANSWERS = {
    kind.__name__: kind
    for kind in (Present, Adopted, TrainReply, MeasureReply, ReestimateReply, EvaluateReply, Failure)
}


def _answer(message: Any, around: flower.Surroundings) -> Any:
    return answer(message, str(around.run_config["experiment"]), around.run, Site.from_config(around.node_config))


def _serve(open_exchange: Callable[[str], flower.Exchange], run_config: Mapping[str, Any]) -> None:
    """One line per round into the log that `spherefed deploy run` shows; a user's error is a line too."""
    names = {name.replace("-", "_"): value for name, value in run_config.items()}
    try:
        for progress in serve(open_exchange, Order(**names)):
            accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.2%}"
            print(f"round {progress.index + 1} of {progress.rounds}: loss {progress.loss:.4f}{accuracy}", flush=True)
    except SpherefedError as error:
        print(f"error: {error}", flush=True)
        raise  # Flower marks the run as failed; it would lose the line if the process ended here
    print("finished", flush=True)


client_app = flower.client_app(_answer, QUESTIONS)
server_app = flower.server_app(_serve, ANSWERS)
