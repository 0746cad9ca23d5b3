"""Generated pictures of garments: the built-in images, which need no download.

Ten garments are drawn as polygons and then varied: every picture has its own size, width, place,
slant, brightness, stripes and grain, and may be mirrored. Some differ by little (a coat is
a pullover that is open at the front), and sizes and places overlap, so that a linear model gets
many right and not all: of 10,000 test images the nearest mean of 50,000 training images gets 60 %,
ridge regression 77 %. They are not photographs, and the data set is labelled synthetic.

The pixels are the same on every host, because no operation here can round differently: the random
numbers are the PCG64 bit generator's own stream (which NumPy keeps, NEP 19), and the rest is
integer arithmetic.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

STREAM = 20_250_117  # the bit generator's seed: another seed gives another data set
SIDE = 28  # pixels of a picture
CANVAS = 112  # units of a drawing, four to a pixel at its own size
CHUNK = 1_000  # pictures that are drawn at a time; each chunk has random numbers of its own


class Patch(NamedTuple):
    """A polygon on the canvas, painted over what lies below."""

    level: int  # 0 is the background, 255 the garment's own brightness
    points: tuple[tuple[int, int], ...]
    mirrored: bool = True  # whether it is also drawn mirrored about the middle


def _box(level: int, left: int, top: int, right: int, bottom: int, mirrored: bool) -> Patch:
    points = ((left, top), (right, top), (right, bottom), (left, bottom))
    return Patch(level, points, mirrored)


# Clothes by their left half, up to the middle at 56; shoes and the bag as a whole.
LONG_SLEEVE = Patch(225, ((40, 18), (24, 28), (12, 92), (24, 94), (36, 48)))
BODY = Patch(255, ((48, 16), (38, 18), (34, 28), (34, 94), (56, 94), (56, 22)))
BUTTONS = tuple(_box(90, 54, y, 58, y + 4, False) for y in range(32, 92, 12))
COLLAR = Patch(180, ((46, 14), (56, 30), (56, 24), (50, 12)))
GARMENTS: tuple[tuple[Patch, ...], ...] = (
    # 0: T-shirt
    (Patch(225, ((40, 18), (26, 24), (14, 44), (26, 52), (36, 44))), BODY),
    # 1: trousers
    (
        Patch(255, ((56, 12), (38, 12), (34, 98), (50, 98), (56, 40))),
        _box(150, 38, 12, 74, 18, False),
    ),
    # 2: pullover
    (LONG_SLEEVE, BODY, _box(170, 34, 86, 78, 94, False)),
    # 3: dress
    (Patch(255, ((48, 10), (44, 14), (46, 42), (30, 98), (56, 98), (56, 18))),),
    # 4: coat
    (LONG_SLEEVE, BODY, _box(255, 34, 90, 78, 100, False), _box(60, 54, 24, 58, 100, False)),
    # 5: sandal
    (
        Patch(255, ((10, 72), (60, 78), (102, 66), (102, 76), (60, 88), (10, 80)), False),
        Patch(200, ((26, 74), (40, 52), (48, 52), (36, 76)), False),
        Patch(200, ((62, 78), (86, 46), (94, 46), (74, 78)), False),
    ),
    # 6: shirt
    (LONG_SLEEVE, BODY, COLLAR, *BUTTONS),
    # 7: sneaker
    (
        Patch(235, ((10, 66), (44, 60), (66, 42), (100, 44), (102, 76), (10, 76)), False),
        _box(160, 10, 76, 102, 84, False),
    ),
    # 8: bag
    (
        Patch(200, ((36, 46), (40, 22), (72, 22), (76, 46)), False),
        Patch(0, ((42, 46), (46, 29), (66, 29), (70, 46)), False),
        Patch(255, ((16, 44), (96, 44), (100, 92), (12, 92)), False),
    ),
    # 9: ankle boot
    (
        Patch(245, ((58, 18), (98, 18), (102, 84), (10, 84), (14, 66), (52, 54)), False),
        _box(160, 10, 84, 102, 92, False),
    ),
)
NAMES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)


def _inside(points: tuple[tuple[int, int], ...]) -> np.ndarray:
    """bool (CANVAS, CANVAS): whether the middle of each unit lies in a polygon (even-odd rule)."""
    import numpy as np

    # Twice the coordinates, so that the middles are whole numbers too.
    x, y = 2 * np.arange(CANVAS)[None, :] + 1, 2 * np.arange(CANVAS)[:, None] + 1
    inside = np.zeros((CANVAS, CANVAS), bool)
    for (x0, y0), (x1, y1) in zip(points, (*points[1:], points[0]), strict=True):
        dx, dy = 2 * (x1 - x0), 2 * (y1 - y0)
        crossed = (2 * y0 > y) != (2 * y1 > y)
        left = (x - 2 * x0) * dy - (y - 2 * y0) * dx
        inside ^= crossed & ((left < 0) if dy > 0 else (left > 0))
    return inside


@cache
def drawings() -> np.ndarray:
    """int32 (10, CANVAS, CANVAS), 0 to 255: the garments, their edges softened over one pixel."""
    import numpy as np

    garments = np.zeros((len(GARMENTS), CANVAS, CANVAS), np.int32)
    for drawing, patches in zip(garments, GARMENTS, strict=True):
        for patch in patches:
            inside = _inside(patch.points)
            drawing[inside | inside[:, ::-1] if patch.mirrored else inside] = patch.level
    padded = np.pad(garments, ((0, 0), (2, 1), (2, 1)))
    softened = np.zeros_like(garments)
    for i in range(4):
        for j in range(4):
            softened += padded[:, i : i + CANVAS, j : j + CANVAS]
    return softened // 16


class Draws:
    """One random integer for each picture of a chunk at a time."""

    def __init__(self, part: int, chunk: int) -> None:
        import numpy as np

        self._bits = np.random.PCG64([STREAM, part, chunk])

    def between(self, low: int, high: int) -> np.ndarray:
        """int32 (CHUNK, 1, 1) from low to high, both included."""
        import numpy as np

        raw = self._bits.random_raw(CHUNK) >> np.uint64(32)
        return (low + (raw % np.uint64(high - low + 1)).astype(np.int32)).reshape(CHUNK, 1, 1)

    def pixels(self) -> np.ndarray:
        """int32 (CHUNK, SIDE, SIDE) from -128 to 127."""
        import numpy as np

        raw = self._bits.random_raw(CHUNK * SIDE * SIDE // 8).astype("<u8")
        return raw.view(np.int8).astype(np.int32).reshape(CHUNK, SIDE, SIDE)


def chunk(part: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """CHUNK pictures, uint8 (CHUNK, SIDE, SIDE), and their labels, uint8 (CHUNK,)."""
    import numpy as np

    draws = Draws(part, number)
    label = draws.between(0, len(GARMENTS) - 1)
    # Where each pixel lies on the canvas: units of 1/32 pixel from the middle, times 512 / 4096.
    x = 32 * np.arange(SIDE, dtype=np.int32)[None, None, :] - 16 * (SIDE - 1)
    y = 32 * np.arange(SIDE, dtype=np.int32)[None, :, None] - 16 * (SIDE - 1)
    x, y = x - draws.between(-72, 72), y - draws.between(-72, 72)
    wide, high = draws.between(440, 690), draws.between(440, 610)
    facing = 1 - 2 * draws.between(0, 1)
    slant, turn = draws.between(-110, 110), draws.between(-80, 80)
    u = CANVAS // 2 + (facing * (wide * x + slant * y) >> 12)
    v = CANVAS // 2 + (high * y + turn * x >> 12)
    on_canvas = (u >= 0) & (u < CANVAS) & (v >= 0) & (v < CANVAS)
    u, v = u.clip(0, CANVAS - 1), v.clip(0, CANVAS - 1)
    garment = np.where(on_canvas, drawings()[label, v, u], 0)
    # Stripes, across or along, of a width and a depth of their own, on two garments of three.
    across, depth = draws.between(0, 1), np.maximum(draws.between(-64, 128), 0)
    striped = ((across * u + (1 - across) * v) // draws.between(5, 12)) & 1
    garment = garment * (256 - striped * depth) * draws.between(80, 255) >> 16
    grain = draws.pixels() * draws.between(4, 96) >> 7
    return (garment + grain).clip(0, 255).astype(np.uint8), label.reshape(CHUNK).astype(np.uint8)


def images(part: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n pictures of a part, uint8 (n, SIDE, SIDE), and their labels, uint8 (n,).

    Parts share no picture, and the first ones are the same for every n.
    """
    import numpy as np

    pictures, labels = np.empty((n, SIDE, SIDE), np.uint8), np.empty(n, np.uint8)
    for start in range(0, n, CHUNK):
        rows = slice(start, min(start + CHUNK, n))
        drawn, chunk_labels = chunk(part, start // CHUNK)
        pictures[rows], labels[rows] = drawn[: rows.stop - start], chunk_labels[: rows.stop - start]
    return pictures, labels
