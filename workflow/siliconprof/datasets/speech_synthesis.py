"""Generated clips with transcripts: the built-in speech, which needs no download.

Every letter has a sound of its own, three sines of fixed frequencies that swell and fade, and words
follow one another with short gaps. Clips differ in pitch, loudness and background noise. So the
words can be learned from the audio, but it is not speech, and the data set is labelled synthetic.

The samples are the same on every host: the sine is a table of 4096 integers, none of which is near
enough to a half for the last bits of a library's sine to matter, and the rest is integer
arithmetic, see `draws.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count

import numpy as np

from siliconprof.datasets.draws import Draws

SAMPLING_RATE_HZ = 16_000
STREAM = 20_240_607  # the seed of the clips: another seed gives another data set
LETTER_STREAM = 20_240_608
LETTER = 1_280  # samples of a letter's sound, 80 ms
GAP = 800  # samples of silence after a word, 50 ms

WORDS = (
    "apple bird blue boat book bread chair cold dark day dog door fire fish five four frog "
    "garden gold green hand heart hill horse house jump king lake lamp leaf milk moon night "
    "ocean paper queen quiet rain red river road ship silver six snow song star stone sun table "
    "ten three tree two voice warm water wind yellow zero"
).split()


@cache
def sine() -> np.ndarray:
    """int64 (4096,): one period, from -32767 to 32767."""
    return np.rint(32767 * np.sin(2 * np.pi * np.arange(4096) / 4096)).astype(np.int64)


def sound(letter: str, pitch_percent: int) -> np.ndarray:
    """int64 (LETTER,), within 16 bits: a letter's three sines, higher or lower by a pitch."""
    n = np.arange(LETTER)
    own_hz = Draws(LETTER_STREAM, ord(letter)).between(200, 4000, 3, 1)
    sung_hz = own_hz * pitch_percent // 100
    tones = sine()[(n * sung_hz * 4096 // SAMPLING_RATE_HZ) & 4095].sum(axis=0)
    envelope = np.minimum(n, LETTER - n)  # 0, up to half of LETTER, and down
    return tones * envelope // (3 * LETTER // 2)


def clip(number: int, clip_seconds: int) -> tuple[np.ndarray, str]:
    """One clip: (int16 samples at 16 kHz, at most `clip_seconds` of them; the words in it)."""
    draws = Draws(STREAM, number)
    pitch_percent, loudness, background, lead = (
        int(draws.between(low, high))
        for low, high in ((90, 112), (5_000, 14_000), (8, 60), (480, 1_920))
    )
    pieces = [np.zeros(lead, np.int64)]
    words: list[str] = []
    room = clip_seconds * SAMPLING_RATE_HZ - lead
    while True:
        word = WORDS[int(draws.between(0, len(WORDS) - 1))]
        room -= len(word) * LETTER + GAP
        if room < 0:
            break
        pieces += [*(sound(letter, pitch_percent) for letter in word), np.zeros(GAP, np.int64)]
        words.append(word)
    samples = np.concatenate(pieces) * loudness // 32768
    samples += draws.between(-background, background, len(samples))
    return samples.astype(np.int16), " ".join(words)


def clips(clip_seconds: int) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the results of `clip` for 0, 1, 2, … forever."""
    return (clip(number, clip_seconds) for number in count())
