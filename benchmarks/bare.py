"""The plainest fast PyTorch loop: one module, one `torch.optim.SGD` per client, weighted state dicts."""

import sys
from collections.abc import Iterator

import torch
from material import Material
from torch.nn import functional
from turns import Lap, serve


def rounds(m: Material, net: torch.nn.Module) -> Iterator[None]:
    """Resumed once per round; the trained model is in the net."""
    torch.manual_seed(123)
    data = [m.client(number) for number in range(len(m.parts))]
    model = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for cohort in m.cohorts:
        num_examples = sum(len(m.parts[client]) for client in cohort)
        total = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        net.train()
        for client in cohort:
            inputs, labels = data[client]
            net.load_state_dict(model)
            optimizer = torch.optim.SGD(net.parameters(), lr=m.lr, momentum=m.momentum)
            order = torch.randperm(len(labels))
            for start in range(0, len(labels), m.batch_size):
                chosen = order[start : start + m.batch_size]
                optimizer.zero_grad(set_to_none=True)
                functional.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
                optimizer.step()
            for name, tensor in net.state_dict().items():
                total[name].add_(tensor, alpha=len(labels) / num_examples)
        model = total
        net.load_state_dict(model)
        m.num_correct(net)
        yield


def play(m: Material, lap: Lap) -> float:
    net = m.fresh()
    for _ in rounds(m, net):
        lap()
    return m.training_loss(net)


if __name__ == "__main__":
    material = Material.load(sys.argv[1])
    serve(lambda lap: play(material, lap), warm_up=material.warm_up, rounds=len(material.cohorts))
