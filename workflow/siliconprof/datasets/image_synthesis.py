"""Generated patterns: the built-in images, which need no download.

Each of ten classes has a smooth random template. An image is a piece of its class's template, at a
random place, with a contrast and a noise of its own. A network learns the classes within few steps;
the images show nothing, and the data set is labelled synthetic.

The pixels are the same on every host: all of it is integer arithmetic, see `draws.py`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from siliconprof.datasets.draws import Draws
from siliconprof.datasets.prepared import N_CLASSES

STREAM = 20_250_117  # the seed of the images: another seed gives another data set
TEMPLATE_STREAM = 20_250_118
SIDE = 28  # pixels of an image
MARGIN = 10  # pixels by which a template is larger than an image, so that its pieces differ
CELL = 7  # pixels over which a template changes little
CHUNK = 1_000  # images that are made at a time; each chunk has random numbers of its own


@cache
def templates() -> np.ndarray:
    """int64 (N_CLASSES, SIDE + MARGIN, SIDE + MARGIN), 0 to 255: soft squares, half black."""
    side = SIDE + MARGIN
    n = -(-side // CELL) + 1
    levels = Draws(TEMPLATE_STREAM).between(-255, 255, N_CLASSES, n, n)
    squares = levels.repeat(CELL, axis=1).repeat(CELL, axis=2)
    around = np.lib.stride_tricks.sliding_window_view(squares, (CELL, CELL), axis=(1, 2))
    return (around.sum(axis=(3, 4))[:, :side, :side] // CELL**2).clip(0)


def chunk(part: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """CHUNK images, uint8 (CHUNK, SIDE, SIDE), and their labels, uint8 (CHUNK,)."""
    draws = Draws(STREAM, part, number)
    labels = draws.between(0, N_CLASSES - 1, CHUNK)
    down, right = draws.between(0, MARGIN, 2, CHUNK)
    pieces = np.lib.stride_tricks.sliding_window_view(templates(), (SIDE, SIDE), axis=(1, 2))
    contrast = draws.between(128, 256, CHUNK, 1, 1)
    noise = draws.between(-64, 64, CHUNK, SIDE, SIDE)
    images = (pieces[labels, down, right] * contrast >> 8) + noise
    return images.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def images(part: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n images of a part, uint8 (n, SIDE, SIDE), and their labels, uint8 (n,).

    Parts share no image, and the first ones are the same for every n.
    """
    chunks = [chunk(part, number) for number in range(-(-n // CHUNK))]
    made, labels = (np.concatenate(arrays)[:n] for arrays in zip(*chunks, strict=True))
    return made, labels
