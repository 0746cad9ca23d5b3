"""Transfers between the host's memory and the device's, with pinned and with pageable host memory.

Each is timed until the device has finished, so that an asynchronous transfer counts whole. Where
the device works in the host's memory there is nothing to transfer, which the backend reports.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

from siliconprof.backends._kernels import DEVICE_TO_HOST, HOST_TO_DEVICE, Transfer
from siliconprof.backends.base import Unsupported
from siliconprof.declarations import Bytes, Parameter
from siliconprof.parameters import Limits, Several
from siliconprof.session.cell_run import CellRun
from siliconprof.workloads._operation import OperationWorkload
from siliconprof.workloads.base import only_fp32

VALUE_BYTES = 4  # bytes of a value
VARIANTS = [*product((HOST_TO_DEVICE, DEVICE_TO_HOST), (False, True))]  # direction, pinned


class Plugin(OperationWorkload):
    """copy"""

    refuses = only_fp32("a transfer moves bytes, whatever they mean")
    LIBRARIES = {"mlx": ("numpy",)}  # its transfers are from and to numpy's arrays
    POINT = {
        "direction": Parameter("string", label="direction"),
        "pinned": Parameter("boolean", label="pinned"),
        "transfer_bytes": Parameter("integer", label="transfer", unit="byte"),
    }
    working_set = "transfer_bytes"

    class Parameters(OperationWorkload.Parameters):
        transfer_bytes: Annotated[
            Several[Annotated[int, Limits(ge=VALUE_BYTES, multiple_of=VALUE_BYTES)]],
            "bytes of one transfer; all are points of one cell",
        ] = [2**16, 2**20, 2**24, 2**28]

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        return {"buffer": max(self.parameters["transfer_bytes"])}

    def n_points(self) -> int:
        return len(self.parameters["transfer_bytes"]) * len(VARIANTS)

    def measure(self, cell_run: CellRun) -> None:
        means: dict[str, str] = {}
        reasons: dict[str, str] = {}  # variant -> why it is not measured
        sizes = sorted(self.parameters["transfer_bytes"])
        for direction, pinned in VARIANTS:
            variant = f"{direction}, {'pinned' if pinned else 'pageable'}"
            for size in sizes:
                transfer, text = cell_run.backend.kernels.transfer(
                    direction, pinned, size // VALUE_BYTES, cell_run.cell.seed
                )
                if transfer is None:
                    reasons[variant] = text
                    break
                means[variant] = text
                params = {"direction": direction, "pinned": pinned, "transfer_bytes": size}
                cell_run.add_point(self.point(cell_run, params, transfer))
        if not means:
            raise Unsupported("; ".join(dict.fromkeys(reasons.values())))
        cell_run.method["copy"] = means
        for variant, reason in reasons.items():
            cell_run.flag("not_measured", f"{variant}: {reason}")

    def point(
        self, cell_run: CellRun, params: dict[str, Any], transfer: Transfer
    ) -> dict[str, Any]:
        """One transfer: compare what arrives with what was sent, then time it."""
        size = params["transfer_bytes"]
        what = f"the {params['direction']} transfer of {size} bytes"
        arrived = transfer.launch()
        cell_run.backend.arrays.eval(arrived)
        cell_run.backend.clock.synchronize()
        if not transfer.arrived(arrived):
            raise ArithmeticError(f"{what} is wrong: what arrives is not what was sent")
        work = {"flops": None, "flops_source": "none", "bytes": size, "result_error": 0.0}
        return self.timed_point(cell_run, what, params, transfer.launch, work)
