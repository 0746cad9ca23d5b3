#!/bin/sh
# Which pins suit this host: apple, cuda or cpu.
if [ "$(uname -s)" = Darwin ] && [ "$(uname -m)" = arm64 ]; then
    echo apple
elif [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null 2>&1; then
    echo cuda
else
    echo cpu
fi
