"""Prepare one speech data set: audio and transcripts in, Whisper's inputs and labels out.

    python -m siliconprof.datasets.prepare_speech --dataset '{"name": "words", "kind": "speech", \
"source": "builtin", "vocab_size": 512}' --output-dir results/data/words

The clips are generated (`builtin`, labelled synthetic), or come from a folder or the hub as
`speech_source.py` tells. The folder gets:

    features.npy           float32 (n_clips, n_mels, 100 * clip_seconds), see `log_mel.py`
    decoder_input_ids.npy  int32 (n_clips, L): start, language, task, no timestamps, the text
    labels.npy             int32 (n_clips, L): the same one token further, with the end of the
                           text; -100 where there is nothing to learn
    tokenizer.json         as the `tokenizers` library reads it
    sources.json           which files of a folder were read: whether they change is looked at
    dataset.json           what it is, its licence, sizes and checksums; written last

`speech_data.py` reads the folder back and needs numpy only. The memory this takes is twice that
of the features: 4 MB a clip of 30 s.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import (
    dataset_spec,
    log_mel,
    prepared,
    preparing,
    source_files,
    speech_data,
    speech_source,
    tokenizer,
)
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.datasets.repository import place
from siliconprof.errors import stage

if TYPE_CHECKING:
    import numpy as np

# Whisper's prompt in `transformers`' words; a tokenizer that is trained here has them as its
# first ids, in this order. The language is `en` whatever is spoken: it only has to be one token.
SPECIAL_TOKENS = (
    tokenizer.END_OF_TEXT,
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|notimestamps|>",
)
MAX_TOKENS = 448  # positions of Whisper's decoder
TOO_MANY_TOKENS = f"with a transcript of more than {MAX_TOKENS} tokens"
IGNORED = -100  # both frameworks' losses leave such labels out


def padded(sequences: Sequence[Sequence[int]], end_of_text: int) -> tuple[np.ndarray, np.ndarray]:
    """(decoder_input_ids, labels), int32 (n, L), of sequences of up to L + 1 tokens."""
    import numpy as np

    length = max(map(len, sequences)) - 1
    inputs = np.full((len(sequences), length), end_of_text, "<i4")
    labels = np.full((len(sequences), length), IGNORED, "<i4")
    for row, sequence in enumerate(sequences):
        inputs[row, : len(sequence) - 1] = sequence[:-1]
        labels[row, : len(sequence) - 1] = sequence[1:]
    return inputs, labels


def heard(
    spec: DatasetSpec, speech: speech_source.Speech
) -> tuple[np.ndarray, list[str], list[int], str]:
    """(features, transcripts, samples of each clip, SHA-256 of all samples).

    Raises:
        PrepareError: there is no clip that can be used.
    """
    import numpy as np

    features: list[np.ndarray] = []
    texts: list[str] = []
    n_samples: list[int] = []
    audio = hashlib.sha256()
    for samples, text in speech.clips:
        features.append(log_mel.log_mel(samples, spec.clip_seconds, spec.n_mels))
        texts.append(text)
        n_samples.append(len(samples))
        audio.update(samples.astype("<i2").tobytes())
        if len(texts) == spec.max_clips:
            break
    if not texts:
        reasons = ", ".join(f"{n} {why}" for why, n in speech.left_out.items()) or "it is empty"
        example = f" ({speech.example})" if speech.example else ""
        raise PrepareError(
            f"dataset '{spec.name}': no clip of {place(spec)} can be used: {reasons}{example}; "
            "raise clip_seconds, or correct text_column or split"
        )
    return np.stack(features).astype("<f4", copy=False), texts, n_samples, audio.hexdigest()


def prepare(
    spec: DatasetSpec, output_dir: Path, sources_state: str = source_files.NEW
) -> dict[str, Any]:
    """Prepare one speech data set and return the content of its `dataset.json`.

    Args:
        sources_state: as `source_files.state` gave it for the folder.

    Raises:
        PrepareError: the data set cannot be read, a library is missing, the folder not writable.
    """
    versions = _versions(spec)
    speech = speech_source.read_speech(spec)
    features, texts, n_samples, audio_sha256 = heard(spec, speech)
    chosen = tokenizer.for_dataset(spec, texts, SPECIAL_TOKENS)
    end, *prompt = chosen.ids(SPECIAL_TOKENS)
    sequences = [[*prompt, *ids, end] for ids in chosen.encode(texts)]
    kept = [row for row, sequence in enumerate(sequences) if len(sequence) - 1 <= MAX_TOKENS]
    if not kept:
        raise PrepareError(
            f"dataset '{spec.name}': all transcripts have more than {MAX_TOKENS} tokens; raise "
            "vocab_size, or correct text_column"
        )
    left_out = Counter(speech.left_out)
    if len(kept) < len(sequences):
        left_out[TOO_MANY_TOKENS] = len(sequences) - len(kept)
        features = features[kept]
    inputs, labels = padded([sequences[row] for row in kept], end)
    text = tokenizer.END_OF_TEXT.join(texts[row] for row in kept).encode("utf-8")
    facts = dataset_spec.asked(spec) | {
        "revision": speech.revision,
        "licence": speech.licence,
        "synthetic": speech.synthetic,
        "n_clips": len(kept),
        "sampling_rate_hz": log_mel.SAMPLING_RATE_HZ,
        "audio_s": sum(n_samples[row] for row in kept) / log_mel.SAMPLING_RATE_HZ,
        "left_out": dict(left_out),
        "n_bytes": len(text),
        "n_tokens": int((labels != IGNORED).sum()),
        "label_length": labels.shape[1],
        "vocab_size_actual": chosen.size,
        "tokenizer_revision": chosen.revision,
        "text_sha256": preparing.sha256(text),
        "audio_sha256": audio_sha256,
        "features_sha256": prepared.array_sha256(features),
        "decoder_input_ids_sha256": prepared.array_sha256(inputs),
        "labels_sha256": prepared.array_sha256(labels),
        "tokenizer_sha256": preparing.sha256(chosen.json),
    }
    facts |= {"sha256": speech_data.combined_sha256(facts), **versions}
    arrays = {"features.npy": features, "decoder_input_ids.npy": inputs, "labels.npy": labels}
    sources = source_files.read(spec, speech.files, speech.whole_folder, sources_state)
    preparing.write_folder(spec.name, output_dir, arrays, chosen.json, facts, sources)
    return facts


def _versions(spec: DatasetSpec) -> dict[str, str]:
    """Versions of what the arrays depend on.

    Raises:
        PrepareError: one is not installed.
    """
    try:
        import tokenizers
        import transformers

        found = {"tokenizers": tokenizers, "transformers": transformers}
        if spec.source != "builtin":
            import soundfile
            import soxr

            found |= {"soundfile": soundfile, "soxr": soxr}
    except ImportError as error:
        raise preparing.missing_package(spec, error) from None
    return {f"{name}_version": library.__version__ for name, library in found.items()}


def summary(facts: Mapping[str, Any]) -> str:
    """One line for a person."""
    skipped = ", ".join(f"{n} {why}" for why, n in facts["left_out"].items()) or "none"
    label = "synthetic, " if facts["synthetic"] else ""
    return (
        f"dataset '{facts['name']}': {label}{facts['n_clips']} clips, {facts['audio_s']:.1f} s "
        f"in all, left out: {skipped}; {facts['n_tokens']} tokens of "
        f"{facts['vocab_size_actual']}, SHA-256 {facts['sha256']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; answer its exit status.

    Raises:
        PrepareError: see `prepare`.
    """
    what = "Prepare one data set: speech to log-mel features and labels."
    return preparing.run("speech", what, prepare, summary, argv)


if __name__ == "__main__":
    preparing.end(stage(main))
