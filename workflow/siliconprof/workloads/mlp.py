"""Daniel 2023's multi-layer perceptron: 784 pixels, 512, dropout, 64, 10; 435,402 parameters."""

from __future__ import annotations

from siliconprof.workloads._classic import ClassicWorkload
from siliconprof.workloads._classic_layers import CLASSES, SIDE, Dense, Dropout, Flatten


class Plugin(ClassicWorkload):
    """mlp"""

    network = "MLP"
    called = "the MLP"
    layers = (
        Flatten(),
        Dense(SIDE * SIDE, 512),
        Dropout(),
        Dense(512, 64),
        Dense(64, CLASSES, relu=False),
    )
