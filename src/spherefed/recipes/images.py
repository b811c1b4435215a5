"""Image data sets at the paper's scale: ten clients, α = 0.1, E = 10, 100 rounds, batch 64.

Smaller budgets are a matter of `--set`: data.examples, rounds, local.epochs. Which network and algorithm the paper
pairs in which table is the business of the recipes that bear a table's number.
"""

from spherefed.data.partition import Dirichlet
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import ConvNet, Encoder, SmallNet
from spherefed.training import LocalTraining


def cifar100() -> Experiment:
    """CIFAR-100 with the paper's ConvNet."""
    return _images("cifar100", ConvNet(), lr=0.02)


def cifar10() -> Experiment:
    """CIFAR-10 with the paper's ConvNet."""
    return _images("cifar10", ConvNet(), lr=0.02)


def tiny_imagenet() -> Experiment:
    """TinyImageNet with the paper's ConvNet."""
    return _images("tiny-imagenet", ConvNet(), lr=0.02)


def fashion_mnist() -> Experiment:
    """Fashion-MNIST with the small net."""
    return _images("fashion-mnist", SmallNet(), lr=0.02)


def _images(name: str, encoder: Encoder, lr: float) -> Experiment:
    return Experiment(
        name=name,
        rounds=100,
        data=Data(name=name),
        partition=Dirichlet(alpha=0.1, clients=10),
        model=Model(encoder=encoder),
        # Unstated in the paper for this net: the learning rate; a first guess for FedAvg, to be tuned for a result.
        local=LocalTraining(lr=lr, epochs=10, batch_size=64),
    )
