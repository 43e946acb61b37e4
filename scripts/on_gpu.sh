#!/usr/bin/env bash
# Run experiments on a machine that is yours for a few minutes, and pack what they gave.
#
#   scripts/on_gpu.sh MINUTES FOLDER EXPERIMENT... [KEY=VALUE ...]
#
#   MINUTES      until everything has ended, this script's start included: cells that would end later, by the estimate, are not begun;
#                cells that still run are asked to save. 0: prepare the data, begin nothing
#   FOLDER       records/ (a file a table: scores, curves, per-example scores, versions), store/ (the cells), and scores.tar.gz: records,
#                curves, settings and tables, without weights and texts
#   KEY=VALUE    as for scripts/reproduce.py; profile=gpu if you name none
#
# Once more with the same FOLDER, it continues: with its store/, where a training stopped; with records/ alone (tar xzf scores.tar.gz), with
# the cells that are not recorded. On another machine: python scripts/results.py EXPERIMENT profile=gpu from=FOLDER adds the records to docs/results.
#
# Python: .venv, or WHEELS=FOLDER (make gpu-wheels) with PYTHON=python3 on a machine with torch and without a network. Data: variables
# SPARSE_ATTENTION_MIRROR and SPARSE_ATTENTION_DATA. Example: scripts/on_gpu.sh 8 lease niculae2017_table2
set -eu
[ $# -ge 3 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
minutes=$1 folder=$2
shift 2
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
case " $* " in *" profile="*) ;; *) set -- "$@" profile=gpu ;; esac
if [ -n "${WHEELS:-}" ]; then
    run=("${PYTHON:-python3}" -m benchmarks.wheels run "$WHEELS")
else
    run=("${PYTHON:-.venv/bin/python}")
fi
"${run[@]}" -c pass  # installs the wheels, which counts as time too
left=$(awk -v m="$minutes" -v s="$SECONDS" 'BEGIN { l = m - s / 60; print (l > 0 ? l : 0) }')
"${run[@]}" scripts/reproduce.py "$@" lease="$folder" minutes="$left" paths.outputs="$folder/store" &
child=$!
trap 'kill -TERM $child' TERM INT
status=0
wait $child || status=$?
trap - TERM INT
wait $child 2>/dev/null || true  # if a signal ended the first wait
packed=$(mktemp)
tar -czf "$packed" -C "$folder" --exclude='*.safetensors' --exclude='*.pt' --exclude=encoding --exclude=checkpoints \
    --exclude='predictions*' --exclude='vqa_results*' --exclude=report --exclude=claim --exclude=scores.tar.gz .
mv "$packed" "$folder/scores.tar.gz"
echo "packed: $folder/scores.tar.gz ($(du -k "$folder/scores.tar.gz" | cut -f1) KB)"
exit $status
