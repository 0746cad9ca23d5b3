"""Whisper's input: a log-mel spectrogram, the same to the last bit on every host.

Radford et al. 2022 (arXiv:2212.04356), section 2.2: 16 kHz, windows of 25 ms (400 samples, Hann)
every 10 ms (160), 80 mel bands; then log10 of the power, nothing further than 8 below the clip's
largest, and (x + 4) / 4. `transformers` has it as WhisperFeatureExtractor, which a test compares.
That one cannot be used here, because hosts must compute their losses from equal bytes: a Fourier
transform and a matrix product in floating point sum in an order that depends on the processor, the
BLAS and the number of threads.

Here the samples are 16-bit integers, and window and waves are a table of integers, so that every
sum of the transform is an integer below 2**53: exact in float64, in any order. What follows is
+, * and comparisons of float64 in a fixed order, which IEEE 754 rounds in one way, up to the
logarithm. Libraries differ in its last bits, by some 1e-15; it is rounded to 2**-10 (0.04 dB), so
about one value in 1e12 could round to a neighbour; a data set has some millions.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SAMPLING_RATE_HZ = 16_000
N_FFT = 400
HOP = 160
TABLE_BITS = 28  # 2**15 (sample) * 2**28 (table) * 200 (sum of the window) < 2**51
FILTER_BITS = 32
GRID = 1024


@cache
def _waves() -> np.ndarray:
    """float64 (400, 402) of integers: window times cosine, window times sine, per frequency."""
    import numpy as np

    n = np.arange(N_FFT)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / N_FFT)
    angle = 2 * np.pi * (np.outer(n, np.arange(N_FFT // 2 + 1)) % N_FFT) / N_FFT
    waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * window[:, None]
    return np.rint(waves * 2**TABLE_BITS)


@cache
def _filters(n_mels: int) -> tuple[np.ndarray, np.ndarray]:
    """(first bin (n_mels,), weights (width, n_mels)) of the mel bands.

    transformers' filters (Slaney's scale and norm, 0 to 8000 Hz), rounded to 2**-32: no weight is
    near a half of that.
    """
    import numpy as np
    from transformers.audio_utils import mel_filter_bank

    dense = mel_filter_bank(
        num_frequency_bins=N_FFT // 2 + 1,
        num_mel_filters=n_mels,
        min_frequency=0.0,
        max_frequency=SAMPLING_RATE_HZ / 2,
        sampling_rate=SAMPLING_RATE_HZ,
        norm="slaney",
        mel_scale="slaney",
    )  # (201, n_mels)
    dense = np.rint(dense * 2.0**FILTER_BITS) / 2.0**FILTER_BITS
    first = (dense > 0).argmax(axis=0)
    width = int((dense > 0).sum(axis=0).max())
    padded = np.concatenate([dense, np.zeros((width, n_mels))])
    columns = np.arange(n_mels)
    return first, np.stack([padded[first + k, columns] for k in range(width)])


def log_mel(samples: np.ndarray, clip_seconds: int, n_mels: int) -> np.ndarray:
    """Whisper's features of one clip, padded with silence.

    Args:
        samples: int16 (n,) at 16 kHz, at most `clip_seconds` of them.

    Returns:
        float32 (n_mels, 100 * clip_seconds), multiples of 2**-10.

    Raises:
        ValueError: there are more samples.
    """
    import numpy as np

    n_samples = clip_seconds * SAMPLING_RATE_HZ
    if len(samples) > n_samples:
        raise ValueError(f"{len(samples)} samples are more than {clip_seconds} s")
    clip = np.zeros(n_samples)
    clip[: len(samples)] = samples
    clip = np.pad(clip, N_FFT // 2, mode="reflect")  # as Whisper centres its windows
    frames = np.lib.stride_tricks.sliding_window_view(clip, N_FFT)[::HOP][:-1]  # (frames, 400)
    spectrum = frames @ _waves()  # exact
    real, imaginary = spectrum[:, : N_FFT // 2 + 1], spectrum[:, N_FFT // 2 + 1 :]
    power = real * real + imaginary * imaginary
    first, weights = _filters(n_mels)
    power = np.pad(power, ((0, 0), (0, len(weights))))
    bands = np.zeros((len(power), n_mels))
    for k, weight in enumerate(weights):  # one bin after the other: the sum depends on the order
        bands += power[:, first + k] * weight
    bands *= 2.0 ** -(2 * (15 + TABLE_BITS))  # samples and table were integers
    logarithm = np.log10(np.maximum(bands, 1e-10))
    logarithm = np.maximum(logarithm, logarithm.max() - 8.0)
    rounded = np.rint((logarithm + 4.0) / 4.0 * GRID) / GRID
    return np.ascontiguousarray(rounded.T, np.float32)
