"""The two Flower apps, which Flower imports by name: `spherefed.deployment.app:server_app` and `…:client_app`."""

from collections.abc import Callable, Mapping
from typing import Any

from spherefed.deployment.handshake import DerivedLoaded, Handshake, HandshakeReply, LoadDerived
from spherefed.deployment.rejected_requests import log_rejected
from spherefed.deployment.server import RunRequest, serve
from spherefed.deployment.site import answer
from spherefed.deployment.site_config import Site
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

MESSAGE_TYPES = {cls.__name__: cls for cls in (Handshake, LoadDerived, Train, Measure, Reestimate, Evaluate)}
REPLY_TYPES = {
    cls.__name__: cls
    for cls in (HandshakeReply, DerivedLoaded, TrainReply, MeasureReply, ReestimateReply, EvaluateReply, Failure)
}


def _answer(message: Any, context: flower.MessageContext) -> Any:
    return answer(message, str(context.run_config["experiment"]), context.run, Site.from_config(context.node_config))


def _serve(open_messenger: Callable[[str], flower.Messenger], run_config: Mapping[str, Any]) -> None:
    """Run the request. Print one line per round, and one for a user error: `spherefed deploy run` shows them."""
    names = {name.replace("-", "_"): value for name, value in run_config.items()}
    try:
        for progress in serve(open_messenger, RunRequest(**names)):
            accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.2%}"
            print(f"round {progress.index + 1} of {progress.rounds}: loss {progress.loss:.4f}{accuracy}", flush=True)
    except SpherefedError as error:
        print(f"error: {error}", flush=True)
        raise  # Flower then marks the run as failed; sys.exit here would lose the printed line
    print("finished", flush=True)


def _max_bytes(node_config: Mapping[str, Any]) -> int:
    return Site.from_config(node_config).limits.max_message_bytes


client_app = flower.client_app(_answer, MESSAGE_TYPES, max_bytes=_max_bytes, rejected=log_rejected)
server_app = flower.server_app(_serve, REPLY_TYPES)
