"""Generated speech-like clips with transcripts: the built-in speech, which needs no download.

Every letter of a word is a short sound of its own (a vowel's three formants over a voice's
harmonics, or noise around a frequency), and words follow one another with short gaps. Speakers
differ in pitch, vocal tract, pace, loudness and background noise. So the words can be learned
from the audio, but it is not speech, and the data set is labelled synthetic.

The samples are the same on every host, because no operation here can round differently: the random
numbers are the PCG64 bit generator's own stream (which NumPy keeps, NEP 19), the sine is a table
of 4096 integers, none of which is near enough to a half for the last bits of a library's sine to
matter, a harmonic's weight comes from +, * and / alone, which IEEE 754 rounds in one way, and the
rest is integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

SAMPLING_RATE_HZ = 16_000
STREAM = 20_240_607  # the bit generator's seed: another seed gives another data set

WORDS = (
    "apple bird blue boat book bread chair cold dark day dog door fire fish five four frog "
    "garden gold green hand heart hill horse house jump king lake lamp leaf milk moon night "
    "ocean paper queen quiet rain red river road ship silver six snow song star stone sun table "
    "ten three tree two voice warm water wind yellow zero"
).split()


class Sound(NamedTuple):
    """How a letter sounds."""

    duration_ms: int
    voice: int  # share of the voice, in eighths
    formants_hz: tuple[int, int, int]  # where the voice's harmonics are loud
    noise: int  # share of the noise, in eighths
    noise_hz: int  # around which frequency


# Vowels: average formants of men's voices (Peterson and Barney 1952, table II) for the vowels of
# "hod", "head", "heed", "hawed" and "who'd". Consonants are ours: distinct, not natural.
SOUNDS = {
    "a": Sound(110, 8, (730, 1090, 2440), 0, 0),
    "e": Sound(100, 8, (530, 1840, 2480), 0, 0),
    "i": Sound(90, 8, (270, 2290, 3010), 0, 0),
    "o": Sound(110, 8, (570, 840, 2410), 0, 0),
    "u": Sound(100, 8, (300, 870, 2240), 0, 0),
    "y": Sound(80, 6, (260, 2070, 3020), 0, 0),
    "b": Sound(60, 4, (200, 700, 2000), 2, 500),
    "c": Sound(60, 0, (0, 0, 0), 6, 2200),
    "d": Sound(60, 4, (200, 1700, 2600), 2, 3000),
    "f": Sound(80, 0, (0, 0, 0), 4, 7000),
    "g": Sound(60, 4, (200, 1200, 2000), 3, 1500),
    "h": Sound(70, 0, (0, 0, 0), 3, 1200),
    "j": Sound(70, 3, (250, 2000, 2800), 5, 2700),
    "k": Sound(60, 0, (0, 0, 0), 7, 1800),
    "l": Sound(80, 6, (360, 1300, 2700), 0, 0),
    "m": Sound(80, 5, (250, 1000, 2200), 0, 0),
    "n": Sound(80, 5, (250, 1700, 2600), 0, 0),
    "p": Sound(60, 0, (0, 0, 0), 6, 700),
    "q": Sound(60, 0, (0, 0, 0), 6, 1400),
    "r": Sound(80, 6, (310, 1060, 1380), 0, 0),
    "s": Sound(90, 0, (0, 0, 0), 6, 5800),
    "t": Sound(60, 0, (0, 0, 0), 7, 3600),
    "v": Sound(70, 4, (250, 1100, 2300), 3, 6500),
    "w": Sound(70, 6, (290, 610, 2150), 0, 0),
    "x": Sound(80, 0, (0, 0, 0), 6, 4600),
    "z": Sound(80, 3, (250, 1500, 2500), 4, 5200),
}
BANDWIDTHS_HZ = (90, 120, 180)  # of the three formants
WEIGHTS = (1024, 640, 320)  # of the three formants
GAP_MS = 70  # between words, before a speaker's pace
LEAD_MS = (30, 120)  # silence before the first word
TAIL_MS = 40  # after the last
HIGHEST_HARMONIC_HZ = 4_000
ATTACK, RELEASE = 128, 192  # samples in which a sound swells and fades


class Draws:
    """Integers from a bit generator's own stream."""

    def __init__(self, stream: int) -> None:
        import numpy as np

        self._bits = np.random.PCG64([STREAM, stream])

    def between(self, low: int, high: int) -> int:
        """One integer from low to high, both included."""
        return low + int(self._bits.random_raw()) % (high - low + 1)

    def noise(self, n: int) -> np.ndarray:
        """int64 (n,), uniform from -32768 to 32767."""
        import numpy as np

        return (self._bits.random_raw(n) >> np.uint64(48)).astype(np.int64) - 32768


class Speaker(NamedTuple):
    """What differs from clip to clip."""

    pitch_mhz: int  # millihertz
    tract_percent: int  # of the formants above
    pace_percent: int  # of the durations above
    loudness: int  # largest sample of a voice, about
    background: int  # largest sample of the background noise


def speaker(draws: Draws) -> Speaker:
    """A random voice."""
    return Speaker(
        pitch_mhz=draws.between(90_000, 230_000),
        tract_percent=draws.between(90, 112),
        pace_percent=draws.between(80, 115),
        loudness=draws.between(5_000, 14_000),
        background=draws.between(8, 60),
    )


@cache
def sine() -> np.ndarray:
    """int64 (4096,): one period, from -32767 to 32767."""
    import numpy as np

    return np.rint(32767 * np.sin(2 * np.pi * np.arange(4096) / 4096)).astype(np.int64)


def tone(n: int, frequency_mhz: int, multiple: int = 1) -> np.ndarray:
    """int64 (n,): a sine of `multiple` times a frequency in millihertz."""
    import numpy as np

    step = (frequency_mhz << 32) // (1000 * SAMPLING_RATE_HZ)  # of 2**32 to a period
    return sine()[(np.arange(n, dtype=np.int64) * (step * multiple) >> 20) & 4095]


def gain(frequency_hz: int, formants_hz: tuple[int, int, int]) -> int:
    """Weight of a harmonic: the sum of a resonance around each formant."""
    total = 0.0
    for formant, bandwidth, weight in zip(formants_hz, BANDWIDTHS_HZ, WEIGHTS, strict=True):
        distance = frequency_hz - formant
        width = bandwidth * bandwidth
        total += weight * width / (width + distance * distance)
    return int(total)


def utter(letter: str, voice: Speaker, draws: Draws) -> np.ndarray:
    """int64 (n,): one letter, no larger than the speaker's loudness."""
    import numpy as np

    sound = SOUNDS[letter]
    n = sound.duration_ms * voice.pace_percent * SAMPLING_RATE_HZ // 100_000
    pitch_mhz = voice.pitch_mhz * draws.between(94, 106) // 100
    samples = np.zeros(n, np.int64)
    if sound.voice:
        formants = tuple(f * voice.tract_percent // 100 for f in sound.formants_hz)
        total = 0
        for harmonic in range(1, 1000 * HIGHEST_HARMONIC_HZ // pitch_mhz + 1):
            weight = gain(harmonic * pitch_mhz // 1000, (formants[0], formants[1], formants[2]))
            if weight >= 16:
                samples += weight * tone(n, pitch_mhz, harmonic)
                total += weight
        samples = samples * sound.voice // (8 * max(total, 1))
    if sound.noise:
        wide_noise = np.repeat(draws.noise(n // 8 + 1), 8)[:n]  # 2 kHz wide
        centre_mhz = 1000 * min(sound.noise_hz * voice.tract_percent // 100, 7_500)
        samples += wide_noise * tone(n, centre_mhz) // 32768 * sound.noise // 8
    swell = np.minimum(np.arange(1, n + 1) * 1024 // ATTACK, 1024)
    fade = np.minimum(np.arange(n, 0, -1) * 1024 // RELEASE, 1024)
    return samples * np.minimum(swell, fade) // 1024 * voice.loudness // 32768


def clip(number: int, clip_seconds: int) -> tuple[np.ndarray, str]:
    """One clip: (int16 samples at 16 kHz, at most `clip_seconds` of them; the words in it)."""
    import numpy as np

    draws = Draws(number)
    voice = speaker(draws)
    max_length = (clip_seconds * 1000 - TAIL_MS) * SAMPLING_RATE_HZ // 1000
    pieces = [np.zeros(draws.between(*LEAD_MS) * SAMPLING_RATE_HZ // 1000, np.int64)]
    length = len(pieces[0])
    gap = np.zeros(GAP_MS * voice.pace_percent * SAMPLING_RATE_HZ // 100_000, np.int64)
    words: list[str] = []
    while True:
        word = WORDS[draws.between(0, len(WORDS) - 1)]
        sounds = [utter(letter, voice, draws) for letter in word]
        sounds = [gap, *sounds] if words else sounds
        n_added = sum(map(len, sounds))
        if length + n_added > max_length:
            break
        pieces += sounds
        length += n_added
        words.append(word)
    pieces.append(np.zeros(TAIL_MS * SAMPLING_RATE_HZ // 1000, np.int64))
    samples = np.concatenate(pieces)
    samples += draws.noise(len(samples)) * voice.background // 32768
    return np.clip(samples, -32768, 32767).astype(np.int16), " ".join(words)


def clips(clip_seconds: int) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the results of `clip` for 0, 1, 2, … forever."""
    number = 0
    while True:
        yield clip(number, clip_seconds)
        number += 1
