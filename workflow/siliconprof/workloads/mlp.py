"""Daniel 2023's multi-layer perceptron: 784 pixels, 512, dropout, 64, 10; 435,402 parameters."""

from __future__ import annotations

from siliconprof.workloads._classic import CLASSES, DROPOUT, FLATTEN, SIDE, ClassicWorkload, dense


class Plugin(ClassicWorkload):
    """mlp"""

    network = "MLP"
    layers = (
        FLATTEN,
        dense(SIDE * SIDE, 512),
        DROPOUT,
        dense(512, 64),
        dense(64, CLASSES, relu=False),
    )
