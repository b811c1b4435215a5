"""The demo: scikit-learn's digits, ten clients with strong label skew."""

from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import Mlp


def digits() -> Experiment:
    """FedAvg with ten local epochs as in the paper; `methods` derives the other methods from it."""
    return Experiment(
        name="digits",
        rounds=20,
        data=Data(name="digits"),
        partition=Dirichlet(alpha=0.1, clients=10),
        model=Model(encoder=Mlp(widths=(128, 64))),
        local=LocalTraining(lr=0.1, epochs=10, batch_size=64),
    )
