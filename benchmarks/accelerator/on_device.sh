#!/usr/bin/env bash
# The first run on a real NVIDIA GPU; the current directory is the repository root. See docs/bare.md.
set -uo pipefail
BUDGET_S=${BUDGET_S:-565}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: >"$OUT/stages.txt"

{
    nvidia-smi
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.sm,persistence_mode,compute_mode --format=csv
    nproc; free -g | head -2; df -h / /tmp | tail -2; uname -a
    command -v gcc g++ nvcc ninja
    python3 -m pip list 2>/dev/null | grep -iE '^(torch|triton|transformers|accelerate|peft|tokenizers|numpy|scipy|pandas|matplotlib|jinja2|huggingface|safetensors|nvidia|psutil|pyyaml|packaging|rich|pytest)'
} >"$LOGS/machine.log" 2>&1
grep -m 3 -iE 'NVIDIA-SMI|H100|H200' "$LOGS/machine.log"

if ! environment >"$LOGS/environment.log" 2>&1; then
    note "environment: failed"; tail -n 5 "$LOGS/environment.log"; keep; exit 1
fi
note "environment: ready, $(python -c 'import torch, transformers, snakemake; print("torch", torch.__version__, "transformers", transformers.__version__, "snakemake", snakemake.__version__)')"
# DeepSpeed's Adam compiles beside what is not timed.
(timeout 150 python -m siliconprof.hosts.offload_ops >"$LOGS/offload-ops.log" 2>&1) &
ops=$!
RESERVE_S=60
stage smoke "${SMOKE_S:-90}" $RUN measured --configfile "$SMOKE"
wait "$ops"; note "offload-ops: exit $?"
statuses
keep
if ! smoked; then
    note "smoke: a cell failed; the rest would only spend the time"; exit 1
fi

# By worth: what a phase does not reach within its limit the second call takes.
measured kernels "${KERNELS_S:-70}" matmul matmul-best bandwidth vjp matvec copy
measured trainings "${TRAININGS_S:-240}" gpt2-nano-plain gpt2-tiny-plain lstm gpt2-small-plain gpt2-small-hf gpt2-small-pure gpt2-small-checkpointed gpt2-small-near-capacity gpt2-large-hf-16 gpt2-large-lora-plain-16 gpt2-large-plain-16 gpt2-medium-offload gpt2-xl-hf-16 whisper-medium-hf-4
LINES_SHOWN=70 stage checks "${CHECKS_S:-75}" python "$KIT/checks.py" ${CHECKS:-}
cp "$LOGS/checks.log" "$OUT/checks.txt"
measured launch "${LAUNCH_S:-50}" kernel-launch
measured compiled "${COMPILED_S:-110}" gpt2-small-compiled
statuses | tee -a "$OUT/stages.txt"
RESERVE_S=10 report "${REPORT_S:-60}"
note "end"
