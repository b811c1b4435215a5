"""pfl-research: its simulated backend, FederatedAveraging and central evaluation.

Added to what it offers: the given cohorts. It goes through a client's examples in their order, without shuffling.
"""

import sys
from itertools import chain

import torch
from material import TEST_BATCH, Material
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from turns import Lap, serve

m = Material.load(sys.argv[1])


class Net(nn.Sequential):
    """The net with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


class AfterRound(TrainingProcessCallback):
    def __init__(self, lap: Lap) -> None:
        self.lap = lap

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.lap()
        return False, Metrics()


def play(lap: Lap) -> float:
    net = Net(*m.fresh())
    users = [PyTorchTensorDataset(m.client(number), user_id=str(number)) for number in range(len(m.parts))]
    drawn = chain.from_iterable(m.cohorts)
    training = FederatedDataset(users.__getitem__, lambda: next(drawn))
    nobody = FederatedDataset(users.__getitem__, lambda: 0)
    evaluation = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=training, val_data=nobody, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            net,
            local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=m.momentum),
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(m.cohorts),
            evaluation_frequency=10**9,  # on clients: the others do not
            train_cohort_size=len(m.cohorts[0]),
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=m.lr, local_batch_size=m.batch_size
        ),
        model_eval_params=evaluation,
        callbacks=[
            CentralEvaluationCallback(
                PyTorchTensorDataset((m.test_inputs, m.test_labels)), model_eval_params=evaluation
            ),
            AfterRound(lap),
        ],
        send_metrics_to_platform=False,
    )
    return m.training_loss(net)


serve(play, warm_up=m.warm_up, rounds=len(m.cohorts))
