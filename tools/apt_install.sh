#!/usr/bin/env bash
# apt_install.sh PACKAGE...: install Debian packages, as root or through sudo, without starting their services.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
    echo "Please install what Debian calls: $* (macOS: brew install rabbitmq postgresql openssl python@3.11)" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    exec sudo "$0" "$@"
fi

# Tests use servers of their own, so the ones in the packages are not to run. Packages ask this file; 101 says no.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "$@"
