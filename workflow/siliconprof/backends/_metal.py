"""What Metal prints when macOS aborts a command buffer, which frameworks may not report.

torch 2.13 on MPS does not report one: its step is short and its arrays hold what was there before
(pytorch pull request 193571). MLX ends with an exception (mlx issue 3267). No Mac was at hand: the
texts are those that public reports quote.
"""

from __future__ import annotations

WATCHDOG = (
    "macOS's GPU watchdog aborted work that kept the display waiting: run while the display sleeps, or "
    "over ssh, under `caffeinate -i`; or set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1, which helps on most Macs "
    "and makes the screen stutter"
)
# A part of the output -> what became of the cell; the first that is found counts.
ABORTS = {
    "Impacting Interactivity": WATCHDOG,
    "ErrorImpactingInteractivity": WATCHDOG,  # kIOGPUCommandBufferCallback…
    "Caused GPU Timeout Error": "macOS aborted work that kept the GPU for too long: a smaller size",
    "command buffer exited with error status": "the GPU gave up work that counts as done: no step is "
    "sure to have trained",
}
