#!/bin/sh
# Import definitions.json into a running RabbitMQ, as soon as it answers. Safe to repeat: what is there already stays,
# and nothing is deleted.
#
#   RABBITMQ_MANAGEMENT   the management API (http://guest:guest@rabbitmq:15672)
#   DEFINITIONS           the file (definitions.json beside this script)
#   WITHIN                seconds to wait for the broker (120)
set -eu

management=${RABBITMQ_MANAGEMENT:-http://guest:guest@rabbitmq:15672}
definitions=${DEFINITIONS:-$(dirname "$0")/definitions.json}
within=${WITHIN:-120}

[ -r "$definitions" ] || { echo "import-definitions: cannot read $definitions" >&2; exit 2; }

waited=0
until answer=$(curl --silent --output /dev/null --max-time 5 --write-out '%{http_code}' "$management/api/overview") &&
    [ "$answer" = 200 ]; do
    if [ "$answer" = 401 ]; then
        echo "import-definitions: RabbitMQ does not know this user: look at RABBITMQ_MANAGEMENT" >&2
        exit 1
    fi
    if [ "$waited" -ge "$within" ]; then
        echo "import-definitions: RabbitMQ did not answer within $within s" >&2
        exit 1
    fi
    sleep 1
    waited=$((waited + 1))
done

# A broker that refuses says why, in JSON: show it, and fail.
if refusal=$(curl --silent --show-error --fail-with-body --max-time 60 --header 'Content-Type: application/json' \
    --data-binary "@$definitions" "$management/api/definitions"); then
    echo "import-definitions: $definitions is imported"
else
    echo "import-definitions: RabbitMQ refused $definitions: $refusal" >&2
    exit 1
fi
