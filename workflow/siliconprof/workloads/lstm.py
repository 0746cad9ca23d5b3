"""Daniel 2023's LSTM: an image is a sequence of its 28 rows; 128 units; 81,674 parameters."""

from __future__ import annotations

from siliconprof.workloads._classic import CLASSES, SIDE, ClassicWorkload, dense, lstm


class Plugin(ClassicWorkload):
    """lstm"""

    network = "LSTM"
    layers = (lstm(SIDE, SIDE, 128), dense(128, CLASSES, relu=False))
