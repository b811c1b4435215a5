"""What channels last and bfloat16 do to a training step of each encoder: CPU time, as a ratio to the plain step.

python benchmarks/layouts.py convnet,mobilenetv2 --repetitions 5 --bf16
"""

import argparse
import os
import time
from dataclasses import replace
from statistics import median

import torch
from torch.nn import functional

from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.acceleration.passes import Pass, check_bfloat16, training_pass
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import VGG13, ConvNet, MobileNetV2, ResNet18, SmallNet
from spherefed.nn.heads import Learned
from spherefed.nn.layers import prefers_channels_last

ENCODERS = {e.kind: e for e in (SmallNet(), ConvNet(), VGG13(), ResNet18(), MobileNetV2())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoders", help=f"of {', '.join(ENCODERS)}; separated by commas")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as runs do
    if given.bf16:
        check_bfloat16()
    print("| encoder | norm | plain step, ms | channels last | bf16 | uses channels last |\n|---|---|---|---|---|---|")
    for kind in given.encoders.split(","):
        for norm in ("group", "batch"):
            encoder = replace(ENCODERS[kind], norm=norm)
            plain, last = _classifier(encoder), _classifier(encoder)
            last.to(memory_format=torch.channels_last)
            passes = [training_pass(plain), training_pass(last)]
            if given.bf16:
                passes.append(training_pass(plain, precision="bf16"))
            seconds = [[_step(forward) for forward in passes] for _ in range(given.repetitions + 1)][1:]
            ratios = [f"{median(turn[i] / turn[0] for turn in seconds):.2f}" for i in range(1, len(passes))]
            cells = [*ratios, "–"][:2]
            print(
                f"| {kind} | {norm} | {1e3 * median(turn[0] for turn in seconds):.0f} | {' | '.join(cells)} "
                f"| {'yes' if prefers_channels_last(plain) else 'no'} |",
                flush=True,
            )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _classifier(encoder: ConvNet | SmallNet | VGG13 | ResNet18 | MobileNetV2) -> Classifier:
    torch.manual_seed(0)
    built = encoder.build((3, 32, 32))
    dim = built.eval()(torch.zeros(1, 3, 32, 32)).shape[1]
    head = Learned().build(100, dim, 0)
    return Classifier(built, head, num_classes=100, normalize=False).train()


def _step(forward: Pass) -> float:
    inputs, labels = torch.randn(64, 3, 32, 32), torch.arange(64)
    began = time.process_time()
    functional.cross_entropy(forward(inputs)[1], labels).backward()
    return time.process_time() - began


if __name__ == "__main__":
    main()
