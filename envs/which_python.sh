#!/bin/sh
# The first Python that suits: 3.11 to 3.14, with what makes an environment. 3.14 after those for which
# every pin has a wheel.
for python in python3.13 python3.12 python3.11 python3.14 python3; do
    if "$python" -c 'import ensurepip, sys, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
        echo "$python"
        exit
    fi
done
