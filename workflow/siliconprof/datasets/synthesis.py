"""Generated images and clips: the built-in data sets, which need no download, labelled synthetic.

Each of ten classes of images has a smooth random template. An image is a piece of its class's
template, at a random place, with a contrast and a noise of its own. A network learns the classes
within few steps; the images show nothing.

Every letter of the speech has a sound of its own, three sines of fixed frequencies that swell and fade,
and words follow one another with short gaps. Clips differ in pitch, loudness and background noise. So the
words can be learned from the audio, but it is not speech.

All are the same on every host and with every NumPy: random numbers come from PCG64's own stream, which
NumPy keeps (NEP 19), and not from its `Generator`; the sine is a table of 4096 integers, none of which is
near enough to a half for the last bits of a library's sine to matter; the rest is integer arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import count

import numpy as np

from siliconprof.datasets.prepared import N_CLASSES

# The seeds: another one gives another data set.
IMAGE_STREAM, TEMPLATE_STREAM = 20_250_117, 20_250_118
CLIP_STREAM, LETTER_STREAM = 20_240_607, 20_240_608

SIDE = 28  # pixels of an image
MARGIN_PIXELS = 10  # pixels by which a template is larger than an image, so that its pieces differ
CELL_PIXELS = 7  # pixels over which a template changes little
IMAGES_AT_A_TIME = 1_000  # images that are made at a time; each chunk has random numbers of its own

SAMPLING_RATE_HZ = 16_000
LETTER = 1_280  # samples of a letter's sound, 80 ms
GAP_SAMPLES = 800  # samples of silence after a word, 50 ms
SPOKEN_WORDS = (
    "apple bird blue boat book bread chair cold dark day dog door fire fish five four frog "
    "garden gold green hand heart hill horse house jump king lake lamp leaf milk moon night "
    "ocean paper queen quiet rain red river road ship silver six snow song star stone sun table "
    "ten three tree two voice warm water wind yellow zero"
).split()


def drawn(bits: np.random.PCG64, low: int, high: int, *shape: int) -> np.ndarray:
    """int64 of a shape, from low to high, both included: the next of a stream of random integers.

    Streams whose seeds differ only in zeros at their end are the same.
    """
    raw = bits.random_raw(math.prod(shape)) >> np.uint64(32)
    return low + (raw % np.uint64(high - low + 1)).astype(np.int64).reshape(shape)


@cache
def templates() -> np.ndarray:
    """int64 (N_CLASSES, side, side), side = SIDE + MARGIN_PIXELS, 0 to 255: soft squares, half black."""
    side = SIDE + MARGIN_PIXELS
    n = -(-side // CELL_PIXELS) + 1
    levels = drawn(np.random.PCG64((TEMPLATE_STREAM,)), -255, 255, N_CLASSES, n, n)
    squares = levels.repeat(CELL_PIXELS, axis=1).repeat(CELL_PIXELS, axis=2)
    around = np.lib.stride_tricks.sliding_window_view(
        squares, (CELL_PIXELS, CELL_PIXELS), axis=(1, 2)
    )
    return (around.sum(axis=(3, 4))[:, :side, :side] // CELL_PIXELS**2).clip(0)


def chunk(part: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """n = IMAGES_AT_A_TIME images, uint8 (n, SIDE, SIDE), and their labels, uint8 (n,)."""
    bits = np.random.PCG64((IMAGE_STREAM, part, number))
    labels = drawn(bits, 0, N_CLASSES - 1, IMAGES_AT_A_TIME)
    down, right = drawn(bits, 0, MARGIN_PIXELS, 2, IMAGES_AT_A_TIME)
    pieces = np.lib.stride_tricks.sliding_window_view(templates(), (SIDE, SIDE), axis=(1, 2))
    contrast = drawn(bits, 128, 256, IMAGES_AT_A_TIME, 1, 1)
    noise = drawn(bits, -64, 64, IMAGES_AT_A_TIME, SIDE, SIDE)
    images = (pieces[labels, down, right] * contrast >> 8) + noise
    return images.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def images(part: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n images of a part, uint8 (n, SIDE, SIDE), and their labels, uint8 (n,).

    Parts share no image, and the first ones are the same for every n.
    """
    chunks = [chunk(part, number) for number in range(-(-n // IMAGES_AT_A_TIME))]
    made, labels = (np.concatenate(arrays)[:n] for arrays in zip(*chunks, strict=True))
    return made, labels


@cache
def sine() -> np.ndarray:
    """int64 (4096,): one period, from -32767 to 32767."""
    return np.rint(32767 * np.sin(2 * np.pi * np.arange(4096) / 4096)).astype(np.int64)


def sound(letter: str, pitch_percent: int) -> np.ndarray:
    """int64 (LETTER,), within 16 bits: a letter's three sines, higher or lower by a pitch."""
    n = np.arange(LETTER)
    own_hz = drawn(np.random.PCG64((LETTER_STREAM, ord(letter))), 200, 4000, 3, 1)
    sung_hz = own_hz * pitch_percent // 100
    tones = sine()[(n * sung_hz * 4096 // SAMPLING_RATE_HZ) & 4095].sum(axis=0)
    envelope = np.minimum(n, LETTER - n)  # 0, up to half of LETTER, and down
    return tones * envelope // (3 * LETTER // 2)


def clip(number: int, clip_seconds: int) -> tuple[np.ndarray, str]:
    """One clip: (int16 samples at 16 kHz, at most `clip_seconds` of them; the words in it)."""
    bits = np.random.PCG64((CLIP_STREAM, number))
    pitch_percent, loudness, background, lead = (
        int(drawn(bits, low, high))
        for low, high in ((90, 112), (5_000, 14_000), (8, 60), (480, 1_920))
    )
    pieces = [np.zeros(lead, np.int64)]
    words: list[str] = []
    room = clip_seconds * SAMPLING_RATE_HZ - lead
    while True:
        word = SPOKEN_WORDS[int(drawn(bits, 0, len(SPOKEN_WORDS) - 1))]
        room -= len(word) * LETTER + GAP_SAMPLES
        if room < 0:
            break
        pieces += [
            *(sound(letter, pitch_percent) for letter in word),
            np.zeros(GAP_SAMPLES, np.int64),
        ]
        words.append(word)
    samples = np.concatenate(pieces) * loudness // 32768
    samples += drawn(bits, -background, background, len(samples))
    return samples.astype(np.int16), " ".join(words)


def clips(clip_seconds: int) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the results of `clip` for 0, 1, 2, … forever."""
    return (clip(number, clip_seconds) for number in count())
