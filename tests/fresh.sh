#!/usr/bin/env bash
# Install and run the project on fresh Debian machines: bash tests/fresh.sh [SUITE...], as root; needs debootstrap.
# Each suite (bookworm: Python 3.11, trixie: 3.13, forky: 3.14) is used four times: as root and as an ordinary user, with g++ and without.
# A toy cell must have the same weights, byte for byte, in every suite: one value with g++ (compiled kernels), another without (plain torch).
# FULL=1 also runs a column of the demo, the wheel and the fast tests.
# FRESH=FOLDER (default /var/tmp/fresh) keeps the roots between runs, and one cache of packages that all machines share: only the first machine
# of each suite downloads. CACHE="" gives every machine its own: 3 GB each.
set -euo pipefail
cd "$(dirname "$0")/.."
FRESH=${FRESH:-/var/tmp/fresh}
CACHE=${CACHE-$FRESH/cache}
PACKAGES="python3 python3-venv git make"  # what docs/start/install.md names
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
at=""

leave() { for place in cache proc dev/shm dev ""; do umount -l "$at/root/$place" 2>/dev/null || true; done; }

finish() { if [ -n "$at" ]; then leave && rm -rf "$at/upper" "$at/work"; fi; }
trap finish EXIT

base() { # SUITE: its root, made once
  [ ! -e "$FRESH/$1.ready" ] || return 0
  rm -rf "${FRESH:?}/$1"
  [ -e "/usr/share/debootstrap/scripts/$1" ] || ln -s sid "/usr/share/debootstrap/scripts/$1"
  debootstrap --variant=minbase "$1" "$FRESH/$1" >"$FRESH/$1.log" 2>&1 || { echo "debootstrap $1 failed: see $FRESH/$1.log" && exit 1; }
  touch "$FRESH/$1.ready"
}

enter() { # SUITE USER PACKAGE...: a machine in $at whose root copies on write; a clone of this commit, in a folder whose name has a space
  local suite=$1 user=$2 root=$at/root
  shift 2
  leave
  rm -rf "$at" && mkdir -p "$at/upper" "$at/work" "$root"
  mount -t overlay overlay -o "lowerdir=$FRESH/$suite,upperdir=$at/upper,workdir=$at/work" "$root"
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  # the mirror may be a snapshot, whose lists of a testing release expire
  chroot "$root" sh -c "apt-get update -qq -o Acquire::Check-Valid-Until=false && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $* ca-certificates" >"$at/apt.log" 2>&1 ||
    { echo "apt-get failed in $at: see apt.log there" && exit 1; }
  cp -L "$CERTIFICATES" "$root$CERTIFICATES"
  chroot "$root" useradd -m ann
  git clone -q --depth 1 "file://$PWD" "$root/srv/a checkout"
  chroot "$root" chown -R "$user" "/srv/a checkout"
  if [ -n "$CACHE" ]; then
    mkdir -p "$CACHE" "$root/cache"
    mount --bind "$CACHE" "$root/cache"
    chroot "$root" chown -R "$user" /cache
  fi
}

as() { # USER COMMAND: in the checkout, with nothing of this machine's environment but its certificates
  chroot "$at/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SSL_CERT_FILE=$CERTIFICATES PIP_CERT=$CERTIFICATES ${CACHE:+UV_CACHE_DIR=/cache} \
    su "$1" -c "cd '/srv/a checkout' && $2"
}

weights() { # USER: the hash of a toy cell's weights
  as "$1" ".venv/bin/python scripts/train.py task=toy mapping=sparsemax seed=91" >"$at/toy.log" 2>&1 &&
    sha256sum "$at/root/srv/a checkout/outputs/cells/toy/sparsemax/"*/weights.safetensors | cut -c1-16
}

declare -A expected
bad=0
fails() { echo "$1" && bad=1; }

mkdir -p "$FRESH"
for suite in ${*:-bookworm trixie forky}; do
  base "$suite"
  for user in root ann; do
    for compiler in "g++" ""; do
      at=$FRESH/run-$suite-$user${compiler:+-compiler} said="$suite, $user, ${compiler:-no compiler}"
      enter "$suite" "$user" $PACKAGES $compiler
      if ! as "$user" "make setup" >"$at/setup.log" 2>&1; then
        fails "$said: make setup fails: $(tail -1 "$at/setup.log")"
      elif ! found=$(weights "$user"); then
        fails "$said: the toy cell fails: $(tail -1 "$at/toy.log")"
      else
        again=$(as "$user" "bash -c 'time make setup'" 2>&1 | sed -n 's/^real.//p')
        echo "$said: $(chroot "$at/root" python3 --version), weights $found, make setup again in $again"
        kind=${compiler:-plain}
        [ "$found" = "${expected[$kind]:=$found}" ] || fails "$said: other weights than ${expected[$kind]}"
        if [ -n "${FULL:-}" ] && [ "$user" = ann ] && [ -n "$compiler" ]; then
          for command in "make demo" "make wheel" "make test"; do
            if as "$user" "$command" >"$at/${command/ /-}.log" 2>&1; then echo "$said: $command"; else
              fails "$said: $command fails: $(tail -1 "$at/${command/ /-}.log")"
            fi
          done
        fi
      fi
      finish
    done
  done
done
exit $bad
