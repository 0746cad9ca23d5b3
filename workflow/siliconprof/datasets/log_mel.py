"""Whisper's input: a log-mel spectrogram, the same on every host.

These are the steps of `transformers.WhisperFeatureExtractor`, by the functions that it is made of.
The extractor itself computes in float32 with torch where torch is installed, so that quiet bands
depend on the processor, and hosts must compute their losses from equal bytes. Here the sums are
float64, which hosts round differently by some 1e-15, and the result is rounded to 2**-10
(0.04 dB): about one value in 1e12 could round to a neighbour; a data set has some millions.
"""

from __future__ import annotations

from functools import cache

import numpy as np

SAMPLING_RATE_HZ = 16_000
N_FFT = 400
HOP = 160
GRID = 1024


@cache
def _filters(n_mels: int) -> np.ndarray:
    """float64 (201, n_mels): the mel bands."""
    from transformers.audio_utils import mel_filter_bank

    return mel_filter_bank(
        num_frequency_bins=N_FFT // 2 + 1,
        num_mel_filters=n_mels,
        min_frequency=0.0,
        max_frequency=SAMPLING_RATE_HZ / 2,
        sampling_rate=SAMPLING_RATE_HZ,
        norm="slaney",
        mel_scale="slaney",
    )


def log_mel(samples: np.ndarray, clip_seconds: int, n_mels: int) -> np.ndarray:
    """Whisper's features of one clip, padded with silence.

    Args:
        samples: int16 (n,) at 16 kHz, at most `clip_seconds` of them.

    Returns:
        float32 (n_mels, 100 * clip_seconds), multiples of 2**-10.
    """
    from transformers.audio_utils import spectrogram, window_function

    clip = np.zeros(clip_seconds * SAMPLING_RATE_HZ)
    clip[: len(samples)] = samples / 32768
    logarithm = spectrogram(
        clip,
        window_function(N_FFT, "hann"),
        frame_length=N_FFT,
        hop_length=HOP,
        power=2.0,
        mel_filters=_filters(n_mels),
        log_mel="log10",
        dtype=np.float64,
    )[:, :-1]
    logarithm = np.maximum(logarithm, logarithm.max() - 8.0)
    return (np.rint((logarithm + 4.0) / 4.0 * GRID) / GRID).astype(np.float32)
