"""The config.json of a person's model: of the hub, of a folder, or as the experiment has it inline.

What is wrong with it is said in one line. Nothing but this one file is read, and no code of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof import formatting
from siliconprof.datasets import user_files
from siliconprof.errors import UserError, in_one_line
from siliconprof.fingerprint import hash_of_file

CONFIG_FILE = "config.json"
HUB = "https://huggingface.co"
# Keys that only other kinds of model have -> what they are.
NO_LANGUAGE_MODEL = {
    "vision_config": "a vision model; its `text_config` may stand inline as `config`",
    "audio_config": "a model of sound; its `text_config` may stand inline as `config`",
    "quantization_config": "quantised, which is not trained; name the checkpoint that it was made of",
}


def parts(model: str) -> tuple[str, str | None]:
    """(hub id or folder, revision or None) of `Qwen/Qwen3-0.6B@main`; a folder may have an @."""
    if Path(model).expanduser().is_dir():
        return model, None
    path, _, revision = model.partition("@")
    return path, revision or None


def is_local(model: str) -> bool:
    """Whether this names a folder, which need not exist, and not a hub id."""
    path, _ = parts(model)
    return Path(path).is_dir() or path.startswith((".", "/", "~")) or path.count("/") > 1


def read(model: str) -> tuple[dict[str, Any], str | None]:
    """(the content of a model's config.json, the hub's commit or None).

    Args:
        model: a hub id, with `@revision`, or a folder.

    Raises:
        UserError: there is none, or it is not of a causal language model; one line.
    """
    path, revision = parts(model)
    folder = Path(path).expanduser()
    if folder.is_dir():
        file, commit = folder / CONFIG_FILE, None
        with user_files.reading(folder, lambda message: error(model, message)):
            names = [one.name for one in sorted(folder.iterdir()) if not one.name.startswith(".")]
        if not file.is_file():
            found = formatting.listing(names, 5) or "nothing"
            raise error(
                model, f"no {CONFIG_FILE} in the folder, found {found}; copy or download it again"
            )
    elif is_local(model):
        raise error(model, f"no such folder (relative to {Path.cwd()})")
    else:
        file = _downloaded(model, path, revision)
        commit = file.parent.name  # …/snapshots/COMMIT
    with user_files.reading(file, lambda message: error(model, message)):
        config = user_files.read_object(file)
    check(config, model)
    return config, commit


def state(model: str | None) -> str | None:
    """The checksum of the config.json in a folder; None for the hub's, inline and unreadable ones."""
    file = Path(model, CONFIG_FILE).expanduser() if model and is_local(model) else None
    with suppress(OSError):
        return hash_of_file(file) if file and file.is_file() else None
    return None


def check(config: Mapping[str, Any], model: str) -> None:
    """Refuse a config that is not of a causal language model, or of one that cannot be trained.

    Raises:
        UserError: one line.
    """
    if not isinstance(config.get("model_type"), str):
        raise error(
            model, f"its {CONFIG_FILE} has no model_type, such as llama; copy or download it again"
        )
    for key, what in NO_LANGUAGE_MODEL.items():
        if config.get(key):
            raise error(model, f"it is {what}")
    named = config.get("architectures") or []
    names = [*map(str, named)] if isinstance(named, list) else [str(named)]
    if config.get("is_encoder_decoder") or (
        names and not any(part in name for name in names for part in ("CausalLM", "LMHead"))
    ):
        what = ", ".join(names) or config["model_type"]
        raise error(model, f"it is {what}, no causal language model (an encoder, or another head)")


def _downloaded(model: str, path: str, revision: str | None) -> Path:
    """Return the path of config.json from the hub or, where the hub is not reachable, its cache."""
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(path, CONFIG_FILE, revision=revision))
    except Exception as wrong:  # no client, or an HTTP error, which change from version to version
        url = f"{HUB}/{path}/resolve/{revision or 'main'}/{CONFIG_FILE}"
        raise error(
            model,
            f"neither a folder (relative to {Path.cwd()}) nor available from the hub or its cache "
            f"({in_one_line(wrong)[:160]}); correct it, log in by `hf auth login` where it is gated, "
            f"or download {url} by hand into a folder and name that",
        ) from wrong


def error(model: str, message: str) -> UserError:
    """The error for a model."""
    return UserError(f"model '{model}': {message}")
