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
stage smoke "${SMOKE_S:-120}" $RUN measured --configfile "$SMOKE"
statuses
LINES_SHOWN=70 stage checks "${CHECKS_S:-70}" python "$KIT/checks.py" ${CHECKS:-}
cp "$LOGS/checks.log" "$OUT/checks.txt"
wait "$ops"; note "offload-ops: exit $?"
keep

# The rest by worth: each phase has a limit, and what a phase did not reach the second call takes.
measured kernels "${KERNELS_S:-100}" matmul bandwidth vjp matvec copy
measured small "${SMALL_S:-60}" gpt2-nano-plain gpt2-tiny-plain
measured train "${TRAIN_S:-160}" gpt2-small-plain gpt2-small-hf
stage tests "${TESTS_S:-40}" python -m pytest -q -p no:cacheprovider -o addopts= \
    -m gpu tests/test_bandwidth.py
measured large "${LARGE_S:-150}" gpt2-large-hf-16 whisper-medium-hf-4 gpt2-small-near-capacity gpt2-small-compiled gpt2-large-lora-plain-16 gpt2-medium-offload
statuses | tee -a "$OUT/stages.txt"
RESERVE_S=10 report "${REPORT_S:-60}"
note "end"
