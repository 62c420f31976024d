#!/usr/bin/env bash
# Make .venv with everything development needs, in the versions of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON3:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Redrive needs Python 3.11 or newer: set PYTHON3 to one" >&2
    exit 1
fi
# Debian keeps the part of Python that makes virtual environments in a package of its own.
"$python" -c 'import ensurepip, venv' 2>/dev/null || tools/apt_install.sh python3-venv

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
