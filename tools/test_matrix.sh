#!/usr/bin/env bash
# test_matrix.sh [TESTS...]: run the broker contract on every RabbitMQ that Redrive supports; one result line for each.
#
# The system's own RabbitMQ is Debian 12's 3.10; the newer ones live in folders under .cache, made when missing.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=("$@")
[ $# -gt 0 ] || tests=(tests/contracts)
results=()
failed=0

run() { # run NAME ROOT
    echo "== RabbitMQ $1"
    # CI=true: a version that could not be tested has not passed.
    if CI=true REDRIVE_RABBITMQ_ROOT=$2 .venv/bin/python -m pytest -n "${WORKERS:-4}" "${tests[@]}"; then
        results+=("RabbitMQ $1: passed")
    else
        results+=("RabbitMQ $1: FAILED")
        failed=1
    fi
}

run_suite() { # run_suite VERSION SUITE
    local root=$PWD/.cache/rabbitmq-$1
    if tools/make_rabbitmq_root.sh "$2" "$root"; then
        run "$1 (Debian $2)" "$root"
    else
        results+=("RabbitMQ $1: FAILED, not installed")
        failed=1
    fi
}

run "of this system" ""
run_suite 4.0 trixie
run_suite 4.3 forky

printf '\n'
printf '%s\n' "${results[@]}"
exit $failed
