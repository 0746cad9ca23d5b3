"""Daniel 2023's convolutional network: three convolutions, 28 to 3 pixels wide; 93,322 parameters."""

from __future__ import annotations

from siliconprof.workloads._classic import ClassicWorkload
from siliconprof.workloads._classic_layers import (
    CLASSES,
    SIDE,
    Conv2D,
    Dense,
    Flatten,
    MaxPooling2D,
)


class Plugin(ClassicWorkload):
    """cnn"""

    network = "CNN"
    called = "the CNN"
    layers = (
        Conv2D(SIDE, 1, 32),  # 26 wide
        MaxPooling2D(),
        Conv2D(13, 32, 64),  # 11
        MaxPooling2D(),
        Conv2D(5, 64, 64),  # 3
        Flatten(),
        Dense(3 * 3 * 64, 64),
        Dense(64, CLASSES, relu=False),
    )
