"""Prepare one speech data set: audio and transcripts in, Whisper's inputs and labels out.

    python -m siliconprof.datasets.prepare_speech --dataset '{"name": "words", "kind": "speech", \
"source": "builtin", "vocab_size": 512}' --output-dir results/data/words

The clips are generated (`builtin`, labelled synthetic), or come from a folder or the hub, see
`speech_source.py`. The folder gets:

    features.npy           float32 (n_clips, n_mels, 100 * clip_seconds), see `log_mel.py`
    decoder_input_ids.npy  int32 (n_clips, L): start, language, task, no timestamps, the text
    labels.npy             int32 (n_clips, L): the same shifted by one token, with the end of
                           the text; -100 where there is nothing to learn
    tokenizer.json         as the `tokenizers` library reads it
    sources.json           the files of a folder that were read, to detect later changes
    dataset.json           its name and origin, licence, sizes and checksums; written last

`speech_data.py` reads the folder back and needs numpy only. Preparing takes twice the memory
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

# Whisper's prompt as `transformers` spells it; a tokenizer that is trained here has these as its
# first ids, in this order. The language is `en` for every transcript: it only has to be one token.
SPECIAL_TOKENS = (
    tokenizer.END_OF_TEXT,
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|notimestamps|>",
)
MAX_TOKENS = 448  # positions of Whisper's decoder
TOO_MANY_TOKENS = f"with a transcript of more than {MAX_TOKENS} tokens"
IGNORED = -100  # both frameworks' losses skip such labels


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


def usable_clips(
    spec: DatasetSpec, speech: speech_source.Speech
) -> tuple[np.ndarray, list[str], list[int], str]:
    """(features, transcripts, number of samples of each clip, SHA-256 of all samples).

    The features are float32 (n_clips, n_mels, 100 * clip_seconds).

    Raises:
        PrepareError: no clip can be used.
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
        sources_state: from `source_files.state` for the folder.

    Raises:
        PrepareError: the data set cannot be read, a library is missing, or the folder is not
            writable.
    """
    versions = _versions(spec)
    speech = speech_source.read_speech(spec)
    features, texts, n_samples, audio_sha256 = usable_clips(spec, speech)
    dataset_tokenizer = tokenizer.for_dataset(spec, texts, SPECIAL_TOKENS)
    end, *prompt = dataset_tokenizer.ids(SPECIAL_TOKENS)
    sequences = [[*prompt, *ids, end] for ids in dataset_tokenizer.encode(texts)]
    usable_rows = [row for row, sequence in enumerate(sequences) if len(sequence) - 1 <= MAX_TOKENS]
    if not usable_rows:
        raise PrepareError(
            f"dataset '{spec.name}': all transcripts have more than {MAX_TOKENS} tokens; raise "
            "vocab_size, or correct text_column"
        )
    left_out = Counter(speech.left_out)
    if len(usable_rows) < len(sequences):
        left_out[TOO_MANY_TOKENS] = len(sequences) - len(usable_rows)
        features = features[usable_rows]
    inputs, labels = padded([sequences[row] for row in usable_rows], end)
    text = tokenizer.END_OF_TEXT.join(texts[row] for row in usable_rows).encode("utf-8")
    facts = dataset_spec.requested_facts(spec) | {
        "revision": speech.revision,
        "licence": speech.licence,
        "synthetic": speech.synthetic,
        "n_clips": len(usable_rows),
        "sampling_rate_hz": log_mel.SAMPLING_RATE_HZ,
        "audio_s": sum(n_samples[row] for row in usable_rows) / log_mel.SAMPLING_RATE_HZ,
        "left_out": dict(left_out),
        "n_bytes": len(text),
        "n_tokens": int((labels != IGNORED).sum()),
        "label_length": labels.shape[1],
        "vocab_size_actual": dataset_tokenizer.size,
        "tokenizer_revision": dataset_tokenizer.revision,
        "text_sha256": preparing.sha256(text),
        "audio_sha256": audio_sha256,
        "features_sha256": prepared.array_sha256(features),
        "decoder_input_ids_sha256": prepared.array_sha256(inputs),
        "labels_sha256": prepared.array_sha256(labels),
        "tokenizer_sha256": preparing.sha256(dataset_tokenizer.json),
    }
    facts |= {"sha256": speech_data.combined_sha256(facts), **versions}
    arrays = {"features.npy": features, "decoder_input_ids.npy": inputs, "labels.npy": labels}
    sources = source_files.read(spec, speech.files, speech.whole_folder, sources_state)
    preparing.write_folder(spec.name, output_dir, arrays, dataset_tokenizer.json, facts, sources)
    return facts


def _versions(spec: DatasetSpec) -> dict[str, str]:
    """Versions of the libraries that the arrays depend on.

    Raises:
        PrepareError: a library is not installed.
    """
    try:
        import tokenizers
        import transformers

        libraries = {"tokenizers": tokenizers, "transformers": transformers}
        if spec.source != "builtin":
            import soundfile
            import soxr

            libraries |= {"soundfile": soundfile, "soxr": soxr}
    except ImportError as error:
        raise preparing.missing_package(spec, error) from None
    return {f"{name}_version": library.__version__ for name, library in libraries.items()}


def summary(facts: Mapping[str, Any]) -> str:
    """One line that describes the prepared data set."""
    skipped = ", ".join(f"{n} {why}" for why, n in facts["left_out"].items()) or "none"
    label = "synthetic, " if facts["synthetic"] else ""
    return (
        f"dataset '{facts['name']}': {label}{facts['n_clips']} clips, {facts['audio_s']:.1f} s "
        f"in all, left out: {skipped}; {facts['n_tokens']} tokens of "
        f"{facts['vocab_size_actual']}, SHA-256 {facts['sha256']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage and return its exit status.

    Raises:
        PrepareError: see `prepare`.
    """
    description = "Prepare one data set: speech to log-mel features and labels."
    return preparing.run("speech", description, prepare, summary, argv)


if __name__ == "__main__":
    preparing.end(stage(main))
