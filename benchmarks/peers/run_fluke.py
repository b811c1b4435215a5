"""fluke: its FedAVG on clients with given data, in memory.

Added to what it offers: the given cohorts, batches of one example, the bare loop's evaluation in place of its four
metrics, and momentum that begins anew in every round, as in the bare loop.
"""

import sys

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import Evaluator
from fluke.utils import ServerObserver
from material import TEST_BATCH, Material
from turns import Lap, serve

m = Material.load(sys.argv[1])


class Accuracy(Evaluator):
    def evaluate(self, round, model, eval_data_loader, loss_fn=None, additional_metrics=None, **kwargs):
        return {"accuracy": m.num_correct(model) / len(m.test_labels)}


class AfterRound(ServerObserver):
    def __init__(self, clients, lap: Lap) -> None:
        self.clients = clients
        self.lap = lap

    def end_round(self, round: int) -> None:
        if m.momentum:
            for client in self.clients:
                client.optimizer = None
        self.lap()


def loader(inputs: torch.Tensor, labels: torch.Tensor, batch_size: int, *, shuffle: bool) -> FastDataLoader:
    return FastDataLoader(
        inputs, labels, num_labels=m.num_classes, batch_size=batch_size, shuffle=shuffle, skip_singleton=False
    )


def play(lap: Lap) -> float:
    environment = FlukeENV()
    environment.set_seed(42)
    environment.set_device("cpu")
    environment.set_evaluator(Accuracy(eval_every=1))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    clients = len(m.parts)
    data = DummyDataContainer(
        clients_tr=[loader(*m.client(number), m.batch_size, shuffle=True) for number in range(clients)],
        clients_te=[None] * clients,
        server_data=loader(m.test_inputs, m.test_labels, TEST_BATCH, shuffle=False),
        num_classes=m.num_classes,
    )
    algorithm = FedAVG(
        n_clients=clients,
        data_splitter=DataSplitter(data, distribution="iid"),
        hyper_params=DDict(
            client=DDict(
                batch_size=m.batch_size,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=m.lr, momentum=m.momentum),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
            ),
            server=DDict(weighted=True),
            model=m.fresh(),
        ),
    )
    cohorts = iter(m.cohorts)
    algorithm.server.get_eligible_clients = lambda fraction: [algorithm.clients[number] for number in next(cohorts)]
    algorithm.attach(AfterRound(algorithm.clients, lap))
    algorithm.run(n_rounds=len(m.cohorts), eligible_perc=len(m.cohorts[0]) / clients, finalize=False)
    return m.training_loss(algorithm.server.model)


serve(play, warm_up=m.warm_up, rounds=len(m.cohorts))
