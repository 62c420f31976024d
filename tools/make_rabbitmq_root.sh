#!/usr/bin/env bash
# make_rabbitmq_root.sh SUITE DIR: a small Debian SUITE with RabbitMQ in the folder DIR; nothing is started.
#
# Debian's suites carry the RabbitMQ versions that make test-matrix wants: trixie has 4.0, forky has 4.3. It takes about
# a minute and 400 MB. A folder that is complete has a stamp in it and is left as it is; half a folder is made anew.
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: $0 SUITE DIR" >&2; exit 2; }
command -v apt-get >/dev/null || { echo "$0: needs Debian, whose packages it unpacks into a folder" >&2; exit 1; }
suite=$1
root=$(realpath --canonicalize-missing "$2")
stamp=$root/.complete

[ ! -e "$stamp" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    exec sudo --preserve-env=http_proxy,https_proxy,no_proxy "$0" "$suite" "$root"
fi

export DEBIAN_FRONTEND=noninteractive LC_ALL=C
if ! command -v debootstrap >/dev/null; then
    apt-get update -q
    apt-get install -q -y --no-install-recommends debootstrap
fi

# The mirror is the one this machine installs from: the first of its package lists that is Debian's own and whole (the one of security fixes is not).
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo "$0: this machine's apt knows no Debian mirror" >&2; exit 1; }

# debootstrap of an older Debian has no script for suites named after its release. They all are the same script.
script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid

rm -rf --one-file-system "$root"
mkdir -p "$root"
debootstrap --variant=minbase --components=main "$suite" "$root" "$mirror" "$script"

# 101 is policy-rc.d's "do not start it": the package would start a broker with the system's name and ports.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
# In a mount namespace of its own, so that nothing stays mounted if this is interrupted.
unshare --mount sh -euc '
    mount --rbind /proc "$1/proc"
    chroot "$1" apt-get install -q -y --no-install-recommends rabbitmq-server
    chroot "$1" apt-get clean
' install "$root"
touch "$stamp"
