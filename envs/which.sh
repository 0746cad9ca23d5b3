#!/bin/sh
# Which pins suit this host: apple, cuda or cpu. A Mac with an Intel processor has none, see install.py.
if [ "$(uname -s)" = Darwin ]; then # a shell under Rosetta would say x86_64 of its processor
    echo apple
elif [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1; then
    echo cuda
else
    echo cpu
fi
