"""Flower's client: it is imported by Ray's worker, where it keeps the data, as in Flower's own examples."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from material import Material
from torch import Tensor
from torch.nn import functional

client_app = ClientApp()


@cache
def material() -> Material:
    return Material.load(os.environ["BENCH_MATERIAL"])


@cache
def data(number: int) -> tuple[Tensor, Tensor]:
    return material().client(number)


@client_app.query()
def who(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    return Message(content=RecordDict({"client": ConfigRecord({"number": number})}), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    m = material()
    net = m.fresh()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    inputs, labels = data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=m.lr, momentum=m.momentum)
    order = torch.randperm(len(labels))
    for start in range(0, len(labels), m.batch_size):
        chosen = order[start : start + m.batch_size]
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    )
    return Message(content=content, reply_to=message)
