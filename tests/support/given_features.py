"""Models whose features are their inputs, so that a test chooses them, and small experiments with a calibration."""

from dataclasses import replace

import numpy as np
import torch

from spherefed.calibration import Context, Ffc
from spherefed.client.training import LocalTraining
from spherefed.experiment import Experiment
from spherefed.nn.classifier import Classifier
from spherefed.nn.heads import ClassifierHead

NUM_CLASSES, DIM = 5, 7


def passing_through(head, *, normalize=False):
    return Classifier(
        torch.nn.Identity(), ClassifierHead(head, learned=False), num_classes=NUM_CLASSES, normalize=normalize
    )


def context_for(head):
    return Context(head=head, seed=3, round=9)


def a_head(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((NUM_CLASSES, DIM)))


def merged_whole(calibration, parts, context):
    total, model = None, passing_through(context.head)
    for features, labels in parts:
        part = calibration.measure(model, [(torch.from_numpy(features), torch.from_numpy(labels))])
        total = calibration.merge(total, part, context)
    return total


def small_experiment(**changes):
    base = Experiment(name="small", rounds=3, local=LocalTraining(lr=0.1, epochs=1), calibration=Ffc())
    return replace(base, **changes)
