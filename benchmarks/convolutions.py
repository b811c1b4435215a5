"""How much of a ConvNet step is convolutions, plain and compiled: what no compiler can take away.

python benchmarks/convolutions.py --steps 20
"""

import argparse
import os

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.acceleration.passes import Pass, training_pass
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet
from spherefed.nn.heads import Learned

BATCH = 64
FORWARD, BACKWARD = "aten::mkldnn_convolution", "aten::convolution_backward"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    keep_freed_memory()  # as runs do
    plain, compiled = _classifier(), _classifier().to(memory_format=torch.channels_last)
    passes = {"plain": training_pass(plain), "compiled": training_pass(compiled, compile_for=BATCH)}
    with FlopCounterMode(display=False) as counter:
        _step(passes["plain"])
    flops = sum(n for name, n in counter.get_flop_counts()["Global"].items() if "convolution" in str(name))
    print(
        "| step | ms | convolutions forward, ms | backward, ms | share | GFLOP/s of convolutions |\n"
        "|---|---|---|---|---|---|"
    )
    for name, forward in passes.items():
        for _ in range(3):
            _step(forward)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            for _ in range(steps):
                _step(forward)
        events = {event.key: event for event in profiler.key_averages()}
        whole = sum(event.self_cpu_time_total for event in events.values()) / steps / 1e3
        there, back = (events[key].cpu_time_total / steps / 1e3 for key in (FORWARD, BACKWARD))
        share, speed = (there + back) / whole, flops / (there + back) / 1e6
        print(f"| {name} | {whole:.0f} | {there:.0f} | {back:.0f} | {share:.0%} | {speed:.0f} |")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _classifier() -> Classifier:
    torch.manual_seed(0)
    encoder = ConvNet().build((3, 32, 32))
    return Classifier(encoder, Learned().build(100, 1024, 0), num_classes=100, normalize=False).train()


def _step(forward: Pass) -> None:
    inputs, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH)
    functional.cross_entropy(forward(inputs)[1], labels).backward()


if __name__ == "__main__":
    main()
