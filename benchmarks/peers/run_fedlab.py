"""FedLab, standalone: its serial SGD trainer, synchronous handler and pipeline.

Added to what it offers: the given cohorts, averaging by number of examples, and momentum that begins anew with every
client, as in the bare loop. Batches come from torch's `DataLoader`, as in its own data sets.
"""

import sys

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from material import Material
from torch.utils.data import DataLoader, TensorDataset
from turns import Lap, serve

m = Material.load(sys.argv[1])


class Clients:
    def __init__(self) -> None:
        self.data = [TensorDataset(*m.client(number)) for number in range(len(m.parts))]

    def get_dataloader(self, number: int, batch_size: int) -> DataLoader:
        return DataLoader(self.data[number], batch_size=batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):
    def local_process(self, payload, id_list) -> None:
        for number in id_list:
            if m.momentum:
                self.optimizer = torch.optim.SGD(self._model.parameters(), m.lr, momentum=m.momentum)
            trained = self.train(payload[0], self.dataset.get_dataloader(number, self.batch_size))
            self.cache.append([*trained, len(m.parts[number])])


class Handler(SyncServerHandler):
    def sample_clients(self) -> list[int]:
        return m.cohorts[self.round]

    def global_update(self, buffer) -> None:
        average = Aggregators.fedavg_aggregate([model for model, _ in buffer], [number for _, number in buffer])
        SerializationTool.deserialize_model(self._model, average)


class Pipeline(StandalonePipeline):
    lap: Lap

    def evaluate(self) -> None:
        m.num_correct(self.handler.model)
        self.lap()


def play(lap: Lap) -> float:
    torch.manual_seed(123)
    net = m.fresh()
    handler = Handler(net, len(m.cohorts), len(m.cohorts[0]) / len(m.parts))
    trainer = Trainer(net, len(m.parts))
    trainer.setup_dataset(Clients())
    trainer.setup_optim(1, m.batch_size, m.lr)
    pipeline = Pipeline(handler, trainer)
    pipeline.lap = lap
    pipeline.main()
    return m.training_loss(handler.model)


serve(play, warm_up=m.warm_up, rounds=len(m.cohorts))
