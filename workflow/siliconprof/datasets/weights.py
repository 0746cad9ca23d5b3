"""Initial weights of a model: drawn once by numpy for every framework, or read from a checkpoint.

A checkpoint is a folder in transformers' layout, or the hub's name of one: `model.safetensors`,
or the parts that `model.safetensors.index.json` lists. Reading needs safetensors and numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from siliconprof import formatting
from siliconprof.datasets import model_config, user_files
from siliconprof.errors import UserError, in_one_line
from siliconprof.fingerprint import hash_of_file

INDEX = "model.safetensors.index.json"
# transformers adds or omits these in front of a bare model's names.
WEIGHT_PREFIXES = ("", "transformer.", "model.")


class Checkpoint:
    """Pretrained weights on disk: their description, and their arrays one by one."""

    def __init__(
        self,
        path: str,
        revision: str | None = None,
        key: str = "weights_path",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Find the files; a hub name's are downloaded, or taken from the hub's cache.

        Args:
            revision: of the hub; None = that after an @ in the name, or the main branch.
            key: of the experiment's config that names it.
            config: keys of config.json that decide what the tensors compute -> the model's values.

        Raises:
            UserError: there is no such checkpoint, it has no safetensors files, or its config.json,
                where there is one, describes another model.
        """
        self.path, self.key = path, key
        self.folder, self.revision = _located(path, revision)
        self.files = self._files()
        self._check(config or {})

    def describe(self) -> dict[str, Any]:
        """The origin and checksums of the weights, for the record."""
        return {
            "weights": "pretrained",
            "weights_path": self.path,
            "weights_revision": self.revision,
            "weights_sha256": {file.name: hash_of_file(file) for file in self.files},
        }

    def _check(self, config: Mapping[str, Any]) -> None:
        file = self.folder / "config.json"
        said = self._object(file) if file.is_file() or file.is_symlink() else {}
        others = [
            f"{key} {said[key]!r}, not {value!r}"
            for key, value in config.items()
            if said.get(key, value) != value
        ]
        if others:
            raise self._error(
                f"another model by its config.json: {'; '.join(others)}; correct size or weights_path"
            )

    def arrays(
        self, shapes: Mapping[str, Sequence[int]], first_rows: Sequence[str] = ()
    ) -> Iterator[tuple[str, Any]]:
        """(name, float32 array) of every tensor that a model needs, in the order of `shapes`.

        Args:
            shapes: name -> shape of each tensor that the model needs.
            first_rows: names of tensors that may have more rows; only the first ones are used.

        Raises:
            UserError: a tensor is missing, of another shape, or stored in an unsupported format.
        """
        import numpy as np
        from safetensors import SafetensorError, safe_open

        locations: dict[str, tuple[Path, str]] = {}
        for file in self.files:
            try:
                with safe_open(file, framework="np") as tensors:
                    keys = tensors.keys()
            except SafetensorError as error:
                raise self._error(
                    f"{file} is damaged ({in_one_line(error)}); copy it again"
                ) from None
            for key in keys:
                for prefix in WEIGHT_PREFIXES:
                    locations.setdefault(key.removeprefix(prefix), (file, key))
        missing = [name for name in shapes if name not in locations]
        if missing:
            raise self._error(
                f"has no tensor '{missing[0]}' (and {len(missing) - 1} others): a checkpoint of "
                "another model; correct size or weights_path"
            )
        for name, shape in shapes.items():
            file, key = locations[name]
            with safe_open(file, framework="np") as tensors:
                dtype = tensors.get_slice(key).get_dtype()
                if dtype == "BF16":
                    array = _bf16(file, key)
                elif dtype in ("F32", "F16", "F64"):
                    array = tensors.get_tensor(key)
                else:
                    raise self._error(
                        f"'{key}' is stored as {dtype}, which numpy cannot read; save the checkpoint "
                        "in fp32, fp16 or bf16"
                    )
            if name in first_rows:
                array = array[: shape[0]]
            if tuple(array.shape) != tuple(shape):
                raise self._error(
                    f"'{key}' has shape {tuple(array.shape)}, the model's is {tuple(shape)}; correct "
                    "size, vocab_size or weights_path"
                )
            yield name, array.astype(np.float32)

    def _files(self) -> list[Path]:
        """Return its safetensors files, which must all exist."""
        index, names = self.folder / INDEX, {"model.safetensors"}
        if index.is_file():
            parts = self._object(index).get("weight_map")
            if not isinstance(parts, dict) or {*map(type, parts.values())} != {str}:
                raise self._error(f"{index} has no weight_map of names of files; copy it again")
            names = set(parts.values())
        files = [self.folder / name for name in sorted(names)]
        for file in files:
            if not file.exists():
                found = formatting.listing(
                    sorted(path.name for path in self.folder.glob("*.safe*")), 5
                )
                raise self._error(
                    f"no {file.name} in it, found {found or 'no other parts'}; expected "
                    f"model.safetensors, or all parts that {INDEX} lists: copy or download the rest"
                )
            with user_files.reading(file, self._error):
                user_files.refuse(file)
        return files

    def _object(self, file: Path) -> dict[str, Any]:
        with user_files.reading(file, self._error):
            return user_files.read_object(file)

    def _error(self, message: str) -> UserError:
        return UserError(f"{self.key} '{self.path}': {message}")


def drawn_weights(
    shapes: Mapping[str, tuple[int, ...]], seed: int, narrow: tuple[str, ...] = (), n_layer: int = 1
) -> Iterator[tuple[str, Any]]:
    """(name, float32 array) of each: matrices normal, a norm's scales 1, biases 0.

    Args:
        narrow: ends of the names of projections into the residual stream, whose matrices have the
            standard deviation 0.02 / sqrt(2 n_layer); others have 0.02.
    """
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(seed))
    deviation = 0.02 / math.sqrt(2 * n_layer)
    for name, shape in shapes.items():
        if len(shape) > 1:
            drawn = generator.standard_normal(shape, dtype=np.float32)
            yield name, drawn * np.float32(deviation if name.endswith(narrow) else 0.02)
        else:
            yield name, np.full(shape, float(name.endswith("weight")), np.float32)


@dataclass
class Weights:
    """The weights of a model, known without building it."""

    shapes: Mapping[str, tuple[int, ...]]  # of each by name, in the order in which they are drawn
    # (shapes, seed) -> (name, float32 array) of each
    draw: Callable[[Mapping[str, tuple[int, ...]], int], Iterator[tuple[str, Any]]] = drawn_weights
    pretrained: bool = False  # read from `checkpoint`, not drawn
    checkpoint: Callable[..., Checkpoint] = Checkpoint
    # name of each that is not trained -> what computes it, from its shape
    fixed: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    adapter_sizes: list[int] | None = None  # values of each adapter's tensor; None = no adapters
    more: Mapping[str, Any] = field(default_factory=dict)  # of their origin, for the record

    def origin(self) -> dict[str, Any]:
        """The origin of the initial weights, for the record."""
        origin = self.checkpoint().describe() if self.pretrained else {"weights": "random"}
        return {**origin, **self.more}

    def initial(self, seed: int) -> Iterator[tuple[str, Any]]:
        """(name, float32 array) of every weight, the same for every framework; or a `UserError`."""
        if self.pretrained:
            return self.checkpoint().arrays(self.shapes, first_rows=[*self.fixed])
        computed = ((name, make(*self.shapes[name])) for name, make in self.fixed.items())
        return chain(computed, self.draw(self._others(), seed))

    def _others(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, shape in self.shapes.items() if name not in self.fixed}

    def n_parameters(self) -> int:
        """Parameters of the model, exact; adapters are not counted."""
        return sum(map(math.prod, self.shapes.values()))

    def trained_sizes(self) -> list[int]:
        """Values of each tensor that the optimizer changes: under adapters, of theirs alone."""
        if self.adapter_sizes is not None:
            return self.adapter_sizes
        return [*map(math.prod, self._others().values())]

    def n_trainable_parameters(self) -> int:
        """Parameters that the optimizer changes."""
        return sum(self.trained_sizes())


def _bf16(file: Path, key: str) -> Any:
    """Return a bfloat16 tensor, for which numpy has no type, as float32: its bits are the upper 16 of those."""
    import numpy as np

    with open(file, "rb") as stream:
        n_header = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(n_header))[key]
        begin, end = entry["data_offsets"]
        stream.seek(8 + n_header + begin)
        bits = np.frombuffer(stream.read(end - begin), "<u2")
    return (bits.astype("<u4") << 16).view("<f4").reshape(entry["shape"])


def local_files(parameters: Mapping[str, Any]) -> list[str]:
    """The local files from which a workload reads its weights; none for the hub's or missing ones."""
    path = parameters.get("weights_path") or parameters.get("model") or ""
    folder = Path(path).expanduser()
    if parameters.get("weights") != "pretrained" or not folder.is_dir():
        return []
    try:
        files = Checkpoint(str(folder)).files
    except UserError:
        return []  # the cell reports it
    index = folder / INDEX
    return [str(file) for file in [*files, *([index] if index.is_file() else [])]]


def _located(path: str, revision: str | None) -> tuple[Path, str | None]:
    """Return (folder, the hub's commit or None) of a checkpoint."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder, None
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.safetensors", "*.json"]
        name, asked = model_config.parts(path)
        revision = revision or asked
        snapshot = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # no client, or an HTTP error, which change from version to version
        raise UserError(
            f"weights_path '{path}': neither a folder (relative to {Path.cwd()}) nor available "
            f"from the hub or its cache ({in_one_line(error)}); correct it, or set weights: random"
        ) from error
    return snapshot, snapshot.name
