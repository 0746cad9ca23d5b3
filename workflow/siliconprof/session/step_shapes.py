"""The matrix products that a training workload does in one step, with their shapes.

    python -m siliconprof.session.step_shapes --workload JSON

The torch model runs forward and backward on fake tensors on the meta device, which have shapes
and no values: nothing is computed, so GPT2-XL takes seconds and no memory. A dispatch mode sees
every operator that torch would hand to a device. Attention is pinned to torch's own decomposition
(`SDPBackend.MATH`), so that its inner products, forward and backward, are among them; what causal
masking could save is not subtracted, as in `flops_per_step`. Convolutions are no matrix products
here and are left out. With gradient checkpointing, what runs twice counts twice.

A process that measures MLX keeps neither torch nor its memory: there the trace runs in a process of
its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof import plugins
from siliconprof.backends.base import Unsupported
from siliconprof.datasets import image_data, speech_data, token_data
from siliconprof.lifetime import leave

TRACED_IN = "torch"  # the framework
TIME_LIMIT_S = 300.0  # the imports take seconds, the largest model a few more
# ATen's matrix products and where their two factors stand among the arguments; torch's linear and
# matmul come down to these. (…, m, k) and (…, k, n)
FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def of(workload: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """`products` ([batch, m, k, n] and `count` per step, most work first) and `step_flops`.

    Args:
        workload: `module`, `parameters` and `dataset_kind` of a training workload, as
            `matrix.expand` resolves them.
        framework: of this process.

    Raises:
        Unsupported: torch, or a package that the model needs, is not installed.
        RuntimeError: the trace failed or took too long; the message says why.
    """
    if framework == TRACED_IN:
        return trace(**workload)
    untraced = f"the step of {workload['module']} could not be traced"
    try:
        process = subprocess.run(
            [
                sys.executable,
                "-m",
                "siliconprof.session.step_shapes",
                "--workload",
                json.dumps(workload),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{untraced} within {TIME_LIMIT_S:.0f} s") from None
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no error output"])[-1]
        raise RuntimeError(f"{untraced}: {last}")
    result = json.loads(process.stdout.splitlines()[-1])
    if "missing" in result:
        raise Unsupported(
            f"the shapes of {workload['module']} are read from its step in torch: "
            f"{result['missing']}"
        )
    return result


def flops(shape: Sequence[int]) -> float:
    """Operations of one product [batch, m, k, n]: a multiplication and an addition per term."""
    batch, m, k, n = shape
    return 2.0 * batch * m * k * n


def trace(module: str, parameters: Mapping[str, Any], dataset_kind: str | None) -> dict[str, Any]:
    """The result of `of`; needs torch and the model's own libraries.

    Raises:
        ImportError: one of them is not installed.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[tuple[int, ...]] = Counter()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.name()
            if "scaled_dot_product" in name:  # its products would be missing from the count
                raise RuntimeError(f"attention was not decomposed: {name}")
            if name in FACTORS:
                a, b = args[FACTORS[name] :][:2]
                counts[(a.shape[0] if a.dim() == 3 else 1, *a.shape[-2:], b.shape[-1])] += 1
            return func(*args, **(kwargs or {}))

    workload = without_weights(module, parameters)
    batch = next(iter(workload.batches(blank_data(dataset_kind, parameters), 0)))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # copying weights that are not there does nothing
        model = workload.torch_model(0).train()
    with fake:
        dtypes = {"i": torch.int64, "u": torch.int64, "f": torch.float32}
        tensors = {
            name: torch.zeros(array.shape, dtype=dtypes[array.dtype.kind], device="meta")
            for name, array in batch.items()
        }
    trained = [p for p in model.parameters() if p.requires_grad]
    with fake, Products(), sdpa_kernel(SDPBackend.MATH):
        # Not `backward`, which would put fake gradients into parameters that are none.
        torch.autograd.grad(workload.torch_loss(model, tensors), trained)
    most_first = sorted(counts.items(), key=lambda item: (-item[1] * flops(item[0]), item[0]))
    return {
        "products": [{"shape": list(shape), "count": count} for shape, count in most_first],
        "step_flops": workload.flops_per_step()[0],
    }


def without_weights(module: str, parameters: Mapping[str, Any]) -> Any:
    """The workload with zeros that take no memory in place of its initial weights."""
    import numpy as np

    workload = plugins.load("workloads", module)(parameters)
    zero = np.zeros((), np.float32)

    def blank(seed: int) -> Any:
        return ((name, np.broadcast_to(zero, s)) for name, s in workload.weight_shapes().items())

    if hasattr(workload, "initial_weights"):
        workload.initial_weights = blank
    return workload


def blank_data(kind: str | None, parameters: Mapping[str, Any]) -> Any:
    """One batch of zeros as a data set of a kind, for its shapes.

    None for a workload that reads no data set.
    """
    import numpy as np

    if kind is None:
        return None
    if kind == "images":
        n_train = parameters.get("batch_size") or max(parameters["batch_sizes"])
        images = np.zeros((n_train, *image_data.SHAPE), np.uint8)
        counts = {"train": n_train, "validation": 0, "test": 0}
        return image_data.ImageData(images, np.zeros(n_train, np.uint8), counts, "", "blank")
    batch_size, vocab_size = parameters["batch_size"], parameters["dataset_vocab_size"]
    if kind == "speech":
        clip_seconds, n_mels = parameters["dataset_clip_seconds"], parameters["dataset_n_mels"]
        return speech_data.SpeechData(
            np.zeros((batch_size, n_mels, 100 * clip_seconds), np.float32),
            np.zeros((batch_size, 1), np.int32),  # the workload fills them to its own length
            np.zeros((batch_size, 1), np.int32),
            "",
            vocab_size,
            clip_seconds,
            n_mels,
            "blank",
        )
    # Some workloads take a token more for the last label, and hold half of the tokens out at most.
    tokens = np.zeros(4 * batch_size * (parameters["seq_len"] + 1), np.uint16)
    return token_data.TokenData(tokens, "", vocab_size, "blank")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a workload's products, or the missing package, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="siliconprof.session.step_shapes", description=__doc__)
    parser.add_argument("--workload", required=True, help="module, parameters, dataset_kind")
    workload = json.loads(parser.parse_args(argv).workload)
    try:
        result = trace(workload["module"], workload["parameters"], workload["dataset_kind"])
    except ImportError as error:
        result = {"missing": str(error)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    leave(main())
