"""Daniel 2023's convolutional network: three convolutions, 28 to 3 pixels wide; 93,322 parameters."""

from __future__ import annotations

from siliconprof.workloads._classic import (
    CLASSES,
    FLATTEN,
    MAX_POOLING,
    SIDE,
    ClassicWorkload,
    convolution,
    dense,
)


class Plugin(ClassicWorkload):
    """cnn"""

    network = "CNN"
    layers = (
        convolution(SIDE, 1, 32),  # 26 wide
        MAX_POOLING,
        convolution(13, 32, 64),  # 11
        MAX_POOLING,
        convolution(5, 64, 64),  # 3
        FLATTEN,
        dense(3 * 3 * 64, 64),
        dense(64, CLASSES, relu=False),
    )
