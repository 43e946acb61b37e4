#!/usr/bin/env bash
# Install and run the project on fresh Debian machines: bash tests/fresh.sh [SUITE...], as root; needs debootstrap.
# Each suite (bookworm: Python 3.11, trixie: 3.13, forky: 3.14) is used four times: as root and as an ordinary user, with g++ and without.
# With g++, the weights of a toy cell must be the same bytes in every suite; without, plain torch may round otherwise.
# FRESH=FOLDER keeps the roots between runs (default /var/tmp/fresh); FULL=1 also runs a column of the demo, the wheel and the fast tests.
set -euo pipefail
cd "$(dirname "$0")/.."
FRESH=${FRESH:-/var/tmp/fresh}
PACKAGES="python3 python3-venv git make"  # what README names
TREE=$(mktemp -d)
git archive HEAD | tar -x -C "$TREE"
mkdir -p "$FRESH"
trap 'rm -rf "$TREE"' EXIT

leave() { for place in proc dev/shm dev ""; do umount -l "$1/root/$place" 2>/dev/null || true; done; }

enter() { # FOLDER SUITE PACKAGE...: a root that copies on write, with certificates and names of this machine
  local at=$1 suite=$2
  shift 2
  if [ ! -e "$FRESH/$suite/.ready" ]; then
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || ln -s sid "/usr/share/debootstrap/scripts/$suite"
    debootstrap --variant=minbase "$suite" "$FRESH/$suite" >"$FRESH/$suite.log" 2>&1 && touch "$FRESH/$suite/.ready"
  fi
  leave "$at"
  rm -rf "$at" && mkdir -p "$at/upper" "$at/work" "$at/root"
  mount -t overlay overlay -o "lowerdir=$FRESH/$suite,upperdir=$at/upper,workdir=$at/work" "$at/root"
  mount -t proc proc "$at/root/proc"
  mount --bind /dev "$at/root/dev"
  mount -t tmpfs tmpfs "$at/root/dev/shm"
  cp -L /etc/resolv.conf /etc/hosts "$at/root/etc/"
  chroot "$at/root" sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $* ca-certificates" >"$at/apt.log" 2>&1
  cp -L /etc/ssl/certs/ca-certificates.crt "$at/root/etc/ssl/certs/"
  chroot "$at/root" useradd -m ann
}

as() { # ROOT USER COMMAND: in the checkout, whose path has a space
  chroot "$1" su "$2" -c "export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt; cd '/srv/a checkout' && $3"
}

weights() { # ROOT USER: the hash of a toy cell's weights
  as "$1" "$2" ".venv/bin/python scripts/train.py task=toy mapping=sparsemax seed=91" >"$1/../toy.log" 2>&1
  (cd "$1/srv/a checkout" && sha256sum outputs/cells/toy/sparsemax/*/weights.safetensors | cut -c1-16)
}

expected="" bad=0
for suite in ${*:-bookworm trixie forky}; do
  for user in root ann; do
    for compiler in "g++" ""; do
      at=$FRESH/run-$suite-$user${compiler:+-compiler} said="$suite, $user, ${compiler:-no compiler}"
      enter "$at" "$suite" $PACKAGES $compiler
      root=$at/root
      mkdir -p "$root/srv" && cp -r "$TREE" "$root/srv/a checkout" && chroot "$root" chown -R "$user" "/srv/a checkout"
      if ! as "$root" "$user" "make setup" >"$at/setup.log" 2>&1; then
        echo "$said: make setup fails: $(tail -1 "$at/setup.log")" && bad=1
      elif ! found=$(weights "$root" "$user"); then
        echo "$said: the toy cell fails: $(tail -1 "$at/toy.log")" && bad=1
      else
        again=$(as "$root" "$user" "bash -c 'time make setup'" 2>&1 | sed -n 's/^real.//p')
        echo "$said: $(chroot "$root" python3 --version), weights $found, make setup again in $again"
        if [ -n "$compiler" ]; then
          [ "$found" = "${expected:=$found}" ] || { echo "$said: other weights than $expected" && bad=1; }
        fi
        if [ -n "${FULL:-}" ] && [ "$user" = ann ] && [ -n "$compiler" ]; then
          for command in "make demo" "make wheel" "make test"; do
            if as "$root" "$user" "$command" >"$at/${command/ /-}.log" 2>&1; then echo "$said: $command"; else
              echo "$said: $command fails: $(tail -1 "$at/${command/ /-}.log")" && bad=1
            fi
          done
        fi
      fi
      leave "$at"
      rm -rf "$at/upper" "$at/work"
    done
  done
done
exit $bad
