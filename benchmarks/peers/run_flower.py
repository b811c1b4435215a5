"""Flower: its FedAvg strategy and its simulation, in which Ray runs the clients in one worker process.

Added to what it offers: the given cohorts. Ray stays alive between turns.
"""

import sys
import time

from flower_client import client_app
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from material import Material
from turns import Lap, serve

PATH, FOLDER = sys.argv[1:3]
m = Material.load(PATH)
server_app = ServerApp()


class GivenCohorts(FedAvg):
    def __init__(self, nodes: dict[int, int], cohorts: list[list[int]]) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=len(nodes))
        self.nodes = nodes
        self.cohorts = cohorts

    def configure_train(self, server_round, arrays, config, grid):
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        chosen = [self.nodes[number] for number in self.cohorts[server_round - 1]]
        return self._construct_messages(record, chosen, MessageType.TRAIN)


def nodes_by_client(grid: Grid) -> dict[int, int]:
    """Nodes have random names, and may still be joining: ask each which client it is."""
    while len(names := list(grid.get_node_ids())) < len(m.parts):
        time.sleep(0.1)
    asked = [Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=name) for name in names]
    return {reply.content["client"]["number"]: reply.metadata.src_node_id for reply in grid.send_and_receive(asked)}


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    nodes = nodes_by_client(grid)
    net = m.fresh()

    def play(lap: Lap) -> float:
        def evaluate(done: int, arrays: ArrayRecord) -> None:
            if done:  # it also asks before the first round
                net.load_state_dict(arrays.to_torch_state_dict())
                m.num_correct(net)
                lap()

        GivenCohorts(nodes, m.cohorts).start(
            grid=grid, initial_arrays=ArrayRecord(m.net.state_dict()), num_rounds=len(m.cohorts), evaluate_fn=evaluate
        )
        return m.training_loss(net)

    serve(play, warm_up=m.warm_up, rounds=len(m.cohorts))


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(m.parts),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": 1,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": FOLDER,
            },
        },
    )
