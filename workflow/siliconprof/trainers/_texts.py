"""What a trained language model writes: sample text at a few temperatures.

The next token is drawn from softmax(logits / temperature), or is the likeliest one at 0; the model
sees the last `seq_len` tokens, all of them again for every new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.backends.base import Stepper

if TYPE_CHECKING:
    from siliconprof.session.session import Session

TOKENIZER = "tokenizer.json"
PROMPT_TOKENS = 16  # the first of the held-out text
HOW = (
    "from the final weights, going on from the first held-out tokens; drawn from "
    "softmax(logits / temperature), the likeliest token at 0"
)


class NoText(Exception):
    """There is no text to show; the message is the record's reason."""


def samples(session: Session, stepper: Stepper, batch: Any) -> list[dict[str, Any]]:
    """`temperature`, `prompt` and `text` for each of the workload's temperatures.

    Args:
        batch: of held-out data, whose first tokens are the prompt.

    Raises:
        NoText: without a tokenizer, or from a model that answers with no numbers.
    """
    workload: Any = session.workload
    parameters = workload.parameters
    tokenizer = load_tokenizer(Path(session.cell.dataset or ""))
    seq_len = batch["input_ids"].shape[1]
    prompt = [int(token) for token in batch["input_ids"][0, : min(PROMPT_TOKENS, seq_len)]]
    # A model may know more tokens than its data: an embedding is often rounded up.
    known = min(tokenizer.get_vocab_size(with_added_tokens=True), workload.vocab_size)
    found = []
    for index, temperature in enumerate(parameters["sample_temperatures"]):
        session.progress(f"write at temperature {temperature}", index)
        seed = [session.cell.seed, index]
        written = write(
            stepper, prompt, temperature, parameters["sample_tokens"], seq_len, known, seed
        )
        found.append(
            {
                "temperature": temperature,
                "prompt": decoded(tokenizer, prompt),
                "text": decoded(tokenizer, written),
            }
        )
    return found


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that a data set was prepared with.

    Raises:
        NoText: it, or the library that reads it, is not there.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NoText("the package tokenizers is not installed") from None
    try:
        return Tokenizer.from_str((folder / TOKENIZER).read_text(encoding="utf-8"))
    except OSError:
        raise NoText(f"the data set has no {TOKENIZER}") from None
    except Exception as error:  # whatever the library raises on bad content
        raise NoText(f"{TOKENIZER} cannot be read: {' '.join(str(error).split())[:200]}") from None


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens; bytes that are no character of UTF-8 become U+FFFD."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=False)
    return text.encode("utf-8", "replace").decode("utf-8")


def write(
    stepper: Stepper,
    prompt: list[int],
    temperature: float,
    count: int,
    seq_len: int,
    known: int,
    seed: list[int],
) -> list[int]:
    """The tokens that follow a prompt.

    Args:
        known: only tokens below it are drawn.

    Raises:
        NoText: a logit is not finite.
    """
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(seed))
    tokens = list(prompt)
    for _ in range(count):
        ids = np.array([tokens[-seq_len:]], np.int32)  # (1, T)
        logits = stepper.outputs({"input_ids": ids})[0, -1, :known].astype(np.float64)
        if not np.isfinite(logits).all():
            raise NoText("the model's outputs are not finite any more")
        if temperature == 0:
            tokens.append(int(logits.argmax()))
            continue
        likely = np.exp((logits - logits.max()) / temperature)
        cumulated = likely.cumsum()
        drawn = np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right")
        tokens.append(int(min(drawn, known - 1)))
    return tokens[len(prompt) :]
