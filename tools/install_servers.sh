#!/usr/bin/env bash
# Install what the tests start privately, RabbitMQ, PostgreSQL, a browser and ffmpeg, where it is missing.
set -euo pipefail
cd "$(dirname "$0")"

found() { compgen -G "$1" >/dev/null; }

# The same places as find_rabbitmq (redrive.testing) and find_postgres (tests.support) search.
missing=()
found '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin' || found '/opt/rabbitmq/sbin' ||
    found '/opt/homebrew/opt/rabbitmq/sbin' || found '/usr/local/opt/rabbitmq/sbin' ||
    missing+=(rabbitmq-server)
found '/usr/lib/postgresql/*/bin/postgres' || found '/usr/pgsql-*/bin/postgres' ||
    found '/opt/homebrew/opt/postgresql*/bin/postgres' || found '/usr/local/bin/createdb' ||
    missing+=(postgresql)
command -v amqp-publish >/dev/null || missing+=(amqp-tools)  # a client for the interop tests
command -v chromium >/dev/null || missing+=(chromium)  # for the console's tests
command -v ffmpeg >/dev/null || missing+=(ffmpeg)  # for the video example
command -v openssl >/dev/null || missing+=(openssl)

[ ${#missing[@]} -eq 0 ] || ./apt_install.sh "${missing[@]}"
