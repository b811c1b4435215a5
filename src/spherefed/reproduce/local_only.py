"""A reference row: every client trains alone, as long as in the federation, and nothing is averaged."""

from statistics import fmean

from spherefed.assembly import assemble
from spherefed.client.evaluation import global_accuracy
from spherefed.client.handle import handle
from spherefed.experiment import Experiment
from spherefed.messages import ModelState, TrainReply
from spherefed.runs.runner import Engine
from spherefed.server.federation import train_request


def local_only_accuracy(experiment: Experiment, engine: Engine) -> float | None:
    """Mean over clients of the accuracy of their own models on the global test set; None if nobody has data.

    Rounds, local epochs and learning rates are those of the experiment; every client starts a round from its own
    model of the round before.
    """
    assembly = assemble(experiment, device=engine.device, data_root=engine.data_root)
    plan, start, found = assembly.plan(), assembly.initial(), []
    for number, size in enumerate(assembly.partition.sizes):
        if not size:
            continue
        model = start
        for round_index in range(plan.rounds):
            ((reply, _),) = handle([assembly.clients[number]], train_request(plan, round_index, model, {}), [None])
            assert isinstance(reply, TrainReply)
            params = {name: value + reply.delta[name] for name, value in model.params.items()}
            model = ModelState(params, reply.buffers, model.head)
        accuracy = global_accuracy(assembly.local_model, model, assembly.test)
        if accuracy is not None:
            found.append(accuracy)
    return fmean(found) if found else None
