#!/usr/bin/env bash
# Install and run the project on fresh Debian machines: bash tests/fresh.sh [SUITE|faults ...], as root; needs debootstrap.
# Each suite (bookworm: Python 3.11, trixie: 3.13, forky: 3.14) is used four times: as root and as an ordinary user, with g++ and without.
# A toy cell must have the same weights, byte for byte, in every suite: one value with g++ (compiled kernels), another without (plain torch).
# The ordinary user also trains the golden cells: with g++ their weights must be the same in every suite, and their scores within 1e-12;
# without, the scores must be within the tolerance of tests/test_golden.py of those recorded.
# "wheel" ("wheel:trixie" alone) installs the wheel in dist/ into a virtual environment of bookworm and of trixie, with and without g++: the README's lines run, with the kernels
# of the wheel, and without g++ no OpenMP runtime but torch's is there; "wheel:aarch64" runs the other wheel's kernels, emulated. TORCH="torch --find-links=/links" LINKS=FOLDER takes torch from a folder.
# "faults" are machines without g++ and without something else (see below): each must end in the same toy cell, if need be by doing what the error says.
# FULL=1 also runs the demo and the fast tests, as the ordinary user with g++.
# FRESH=FOLDER (default /var/tmp/fresh) keeps the roots between runs, and one cache of packages that all machines share: only the first machine
# of each suite downloads. CACHE="" gives every machine its own: 3 GB each.
set -euo pipefail
cd "$(dirname "$0")/.."
FRESH=${FRESH:-/var/tmp/fresh}
CACHE=${CACHE-$FRESH/cache}
INSTALL=$(sed -n 's/^| Debian.*`\(apt-get install .*\)` |$/\1 -y -qq/p' docs/start/install.md)  # the line for Debian, as users type it
FAULTY=trixie                                                                                     # the suite of the faults
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
HERE="/srv/a checkout"
at=""

leave() { for place in cache links proc dev/shm dev "srv/a disk" ""; do umount -l "$at/root/$place" 2>/dev/null || true; done; }
finish() { [ -z "$at" ] || { leave && rm -rf "$at/upper" "$at/work"; }; }
trap finish EXIT

enter() { # LAYERS: mount a machine at $at/root that sees the folders LAYERS (a:b, the upper first) and writes to $at/upper
  leave
  rm -rf "$at" && mkdir -p "$at/upper" "$at/work" "$at/root"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$at/upper,workdir=$at/work" "$at/root"
  mount -t proc proc "$at/root/proc"
  mount --bind /dev "$at/root/dev"
  mount -t tmpfs tmpfs "$at/root/dev/shm"
  cp -L /etc/resolv.conf /etc/hosts "$at/root/etc/"
  cp -L $CERTIFICATES "$at/root/srv/trusted.crt"
  if [ -n "$CACHE" ]; then
    mkdir -p "$CACHE" "$at/root/cache"
    mount --bind "$CACHE" "$at/root/cache"
  fi
}

layer() { # NAME LAYERS COMMAND [LINKS]: what COMMAND, run as root, changes in a machine of LAYERS: made once, in $FRESH/NAME/upper
  [ ! -e "$FRESH/$1.ready" ] || return 0
  at=$FRESH/$1
  enter "$2"
  [ -z "${4:-}" ] || { mkdir -p "$at/root/links" && mount --bind "$4" "$at/root/links"; }
  chroot "$at/root" sh -c "$3" >"$FRESH/$1.log" 2>&1 || { echo "$1 failed: see $FRESH/$1.log" && exit 1; }
  leave && at=""
  touch "$FRESH/$1.ready"
}

layers() { # SUITE COMPILER: set $below to the layers of a machine with the packages of docs/start/install.md
  local base=$FRESH/$1
  if [ ! -e "$base.ready" ]; then
    rm -rf "$base"
    [ -e "/usr/share/debootstrap/scripts/$1" ] || ln -s sid "/usr/share/debootstrap/scripts/$1"
    debootstrap --variant=minbase "$1" "$base" >"$base.log" 2>&1 || { echo "debootstrap $1 failed: see $base.log" && exit 1; }
    touch "$base.ready"
  fi
  # the mirror may be a snapshot, whose lists of a testing release expire
  layer "$1-packages" "$base" "apt-get update -qq -o Acquire::Check-Valid-Until=false && DEBIAN_FRONTEND=noninteractive $INSTALL && useradd -m ann"
  below=$FRESH/$1-packages/upper:$base
  [ -z "$2" ] || { layer "$1-$2" "$below" "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $2" && below=$FRESH/$1-$2/upper:$below; }
}

clone() { # USER: this commit, in a folder whose name has a space
  git clone -q --depth 1 "file://$PWD" "$at/root$HERE"
  chroot "$at/root" chown -R "$1" "$HERE" ${CACHE:+/cache}
}

as() { # USER COMMAND: in the checkout, with nothing of this machine's environment but its certificates
  local trusted=/srv/trusted.crt
  chroot "$at/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SSL_CERT_FILE=$trusted PIP_CERT=$trusted ${CACHE:+UV_CACHE_DIR=/cache} \
    su "$1" -c "cd '$HERE' && $2"
}

weights() { # USER: the hash of a toy cell's weights
  as "$1" ".venv/bin/python scripts/train.py task=toy mapping=sparsemax seed=91" >"$at/toy.log" 2>&1 &&
    sha256sum "$at/root$HERE/outputs/cells/toy/sparsemax/"*/weights.safetensors | cut -c1-16
}

declare -A expected
bad=0
fails() { echo "$1" && bad=1; }
last() { grep -v "^make" "$1" | tail -1; }  # what a command said last

toy() { # SAID USER KIND: train the toy cell and compare its weights with those of the other machines of this KIND
  found=$(weights "$2") || { fails "$1: the toy cell fails: $(last "$at/toy.log")" && return 1; }
  [ "$found" = "${expected[$3]:=$found}" ] || fails "$1: other weights than ${expected[$3]}"
}

furthest() { # FOLDER FOLDER: the largest difference between the scores of golden cells, relative
  python3 -c '
import json, pathlib, sys
a, b = ({p.name: json.loads(p.read_text())["scores"] for p in pathlib.Path(f).glob("*.json")} for f in sys.argv[1:])
assert a.keys() == b.keys() and all(a[n].keys() == b[n].keys() for n in a)
print(max(abs(x - b[n][k]) / max(abs(x), 1e-3) for n in a for k, x in a[n].items()))' "$@"
}

golden() { # SAID KIND: train the golden cells as ann and compare them with the other machines of this KIND
  local kept=$FRESH/golden-$2 found far
  as ann "make developer && GOLDEN=record .venv/bin/python -m pytest -q tests/test_golden.py -k golden_cell --basetemp=/tmp/golden" >"$at/golden.log" 2>&1 ||
    { fails "$1: golden cells fail: $(last "$at/golden.log")" && return; }
  found=$(cd "$at/root/tmp/golden" && find . -name weights.safetensors | sort | xargs sha256sum | sha256sum | cut -c1-16)
  [ -n "${expected[golden-$2]:-}" ] || { rm -rf "$kept" && cp -r "$at/root$HERE/tests/golden" "$kept"; }
  far=$(furthest "$kept" "$at/root$HERE/tests/golden")
  echo "$1: golden cells: weights $found, scores within $far of the first machine's, $(furthest tests/golden "$at/root$HERE/tests/golden") of those recorded"
  [ "$found" = "${expected[golden-$2]:=$found}" ] || fails "$1: other weights of golden cells than ${expected[golden-$2]}"
  awk "BEGIN {exit !($far <= 1e-12)}" || fails "$1: other scores of golden cells"
}

whole() { # SUITE
  local user compiler kind said command
  for user in root ann; do
    for compiler in "g++" ""; do
      layers "$1" "$compiler"
      at=$FRESH/run-$1-$user${compiler:+-compiler} said="$1, $user, ${compiler:-no compiler}" kind=${compiler:-plain}
      enter "$below"
      clone "$user"
      if ! as "$user" "make setup" >"$at/setup.log" 2>&1; then
        fails "$said: make setup fails: $(last "$at/setup.log")"
      elif toy "$said" "$user" "$kind"; then
        again=$(as "$user" "bash -c 'time make setup'" 2>&1 | sed -n 's/^real.//p')
        echo "$said: $(chroot "$at/root" python3 --version), weights $found, make setup again in $again"
        [ "$user" = root ] || golden "$said" "$kind"
        if [ -n "${FULL:-}" ] && [ "$user" = ann ] && [ -n "$compiler" ]; then
          for command in "make demo" "make test"; do
            if as "$user" "$command" >"$at/${command/ /-}.log" 2>&1; then echo "$said: $command"; else
              fails "$said: $command fails: $(last "$at/${command/ /-}.log")"
            fi
          done
        fi
      fi
      finish
    done
  done
}

# ---- faults: each breaks a machine, and ends in a toy cell

refused() { # SAID WORDS: make setup must fail, and its last line must contain WORDS
  ! as ann "make setup" >"$at/refused.log" 2>&1 || { fails "$1: make setup does not refuse" && return 1; }
  last "$at/refused.log" | grep -F -- "$2" || { fails "$1: the error does not say what to do: $(last "$at/refused.log")" && return 1; }
}

without_git() { rm "$at/root/usr/bin/git"; }

without_shm() { mount -o remount,ro "$at/root/dev/shm"; }

without_venv() { # do what the error says
  chroot "$at/root" sh -c "dpkg --purge --force-depends python3-venv \$(dpkg-query -Wf '\${Package}\n' 'python3.*-venv')" >"$at/purge.log" 2>&1
  local said
  said=$(refused "$1" "apt-get install python3.") || { echo "$said" && return 1; }
  chroot "$at/root" sh -c "DEBIAN_FRONTEND=noninteractive ${said##*: } -y -qq" >"$at/apt.log" 2>&1
}

without_disk() { # a disk with 2 GB, then a folder elsewhere, as the error says
  local disk="$at/root/srv/a disk"
  mkdir "$disk" && mount -t tmpfs -o size=2g tmpfs "$disk"
  mv "$at/root$HERE" "$disk/checkout"
  HERE="/srv/a disk/checkout" refused "$1" "move this folder to a larger disk" || return 1
  mv "$disk/checkout" "$at/root$HERE"
}

interrupted() { # Ctrl-C (which a job in the background may have inherited as ignored) and kill -9, while packages are installed
  local signal
  for signal in INT KILL; do
    rm -f "$at/root$HERE/.venv/lib/"*/site-packages/torch/version.py
    as ann "bash -c 'set -m; env --default-signal=INT make setup & until ls .venv/lib/*/site-packages/torch/version.py; do sleep 0.1; done 2>/dev/null; kill -$signal -- -\$!; wait \$!'" \
      >"$at/$signal.log" 2>&1 && fails "$1: make setup ended well after SIG$signal"
  done
  grep -F 'run `make setup` again' "$at/INT.log" || fails "$1: Ctrl-C says nothing"
}

faults() {
  local fault said
  for fault in without_git without_shm without_venv without_disk interrupted; do
    layers "$FAULTY" ""
    at=$FRESH/run-$fault said="$FAULTY, ann, ${fault/_/ }"
    enter "$below"
    clone ann
    if ! "$fault" "$said"; then fails "$said: the fault's own steps fail"
    elif ! as ann "make setup" >"$at/setup.log" 2>&1; then fails "$said: make setup fails: $(last "$at/setup.log")"
    elif toy "$said" ann plain; then echo "$said: weights $found"
    fi
    finish
  done
}

# ---- the wheel

wheel() { # SUITE: install the wheel in dist/ as a user does
  local compiler said found
  for compiler in "" "g++"; do
    layers "$1" "$compiler"
    layer "$1-torch" "$FRESH/$1-packages/upper:$FRESH/$1" "env -i PATH=/usr/bin:/bin SSL_CERT_FILE=/srv/trusted.crt PIP_CERT=/srv/trusted.crt PIP_CACHE_DIR=/cache \
      sh -c 'python3 -m venv /venv && /venv/bin/pip install -q ${TORCH:-torch}'" "${LINKS:-}"
    at=$FRESH/run-wheel-$1${compiler:+-compiler} said="$1, ${compiler:-no compiler}"
    enter "$FRESH/$1-torch/upper:$below"
    cp dist/*_"$(uname -m)".whl README.md tests/readme_lines.py "$at/root/srv/"
    as() { chroot "$at/root" env -i PATH=/usr/bin:/bin su ann -c "cd /tmp && $1"; }
    chroot "$at/root" sh -c "chown -R ann /venv && ! ldconfig -p | grep -q libgomp || [ -n '$compiler' ]" || { fails "$said: there is an OpenMP runtime" && continue; }
    if ! as "/venv/bin/pip install -q --no-index /srv/*.whl && /venv/bin/python /srv/readme_lines.py /srv/README.md" >"$at/readme.log" 2>&1; then
      fails "$said: the README's lines: $(last "$at/readme.log")"
    elif ! as "/venv/bin/python -m sparse_attention" >"$at/main.log" 2>&1 || ! grep -q "^kernels on cpu: native (.*, from the wheel)" "$at/main.log"; then
      fails "$said: python -m sparse_attention: $(last "$at/main.log")"
    else
      echo "$said: $(sed -n '/^sparse_attention/,+2p' "$at/main.log" | paste -sd ';'); $(last "$at/readme.log")"
    fi
    finish
  done
}

aarch64() { # the row kernels of the aarch64 wheel, emulated, give what those of the x86-64 wheel give here (tests/wheel_kernels.py)
  local base=$FRESH/aarch64 emulator said="aarch64, emulated" package machine
  emulator=$(command -v qemu-aarch64-static) || { fails "$said: apt-get install qemu-user-static" && return; }
  if [ ! -e "$base.ready" ]; then
    debootstrap --variant=minbase --arch=arm64 --foreign --include=python3 trixie "$base" >"$base.log" 2>&1 || { fails "$said: see $base.log" && return; }
    for package in "$base"/var/cache/apt/archives/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$base"; done
    mkdir -p "$base/srv" && touch "$base.ready"
  fi
  at=$FRESH/run-aarch64
  enter "$base"
  for machine in x86_64 aarch64; do python3 -m zipfile -e dist/*_$machine.whl "$at/root/srv/$machine"; done
  cp tests/wheel_kernels.py "$emulator" "$at/root/srv/"
  python3 tests/wheel_kernels.py "$at/root/srv/x86_64" >"$at/here"
  chroot "$at/root" /srv/qemu-aarch64-static -cpu cortex-a72 /usr/bin/python3 /srv/wheel_kernels.py /srv/aarch64 >"$at/there" 2>&1 || true
  if diff "$at/here" "$at/there"; then echo "$said: $(wc -l <"$at/there") calls of kernels as on $(uname -m)"; else fails "$said: other numbers"; fi
  finish
}

mkdir -p "$FRESH"
for suite in ${*:-bookworm trixie forky faults}; do
  case $suite in
    faults) faults ;;
    wheel) wheel bookworm && wheel trixie && aarch64 ;;
    wheel:aarch64) aarch64 ;;
    wheel:*) wheel "${suite#*:}" ;;
    *) whole "$suite" ;;
  esac
done
exit $bad
