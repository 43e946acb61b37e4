#!/usr/bin/env bash
# Run experiments on a machine that is yours for a few minutes, and pack what they gave.
#
#   scripts/on_gpu.sh MINUTES FOLDER EXPERIMENT... [KEY=VALUE ...]
#   scripts/on_gpu.sh together FOLDER "1 4 8 12" [KEY=VALUE ...]      # how many cells an hour, with so many on the GPU: into docs/reference/gpu.md
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
if [ "$minutes" = together ]; then  # two epochs by the papers' LSTM: the first compiles, the second counts. A cell has 13, of 29,000 pairs
    counts=$1 found="" gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
    shift
    for n in $counts; do
        "${run[@]}" scripts/reproduce.py niculae2017_nmt rows=softmax columns=fren seeds="$(seq -s, "$n")" train.max_epochs=2 \
            "data.limits={train: 6400, dev: 100, test: 100}" runtime.workers="$n" runtime.workers_per_device="$n" paths.outputs="$folder/$n" "$@"
        found="$found; $n: $(find "$folder/$n" -name curves.csv -exec awk -F, 'FNR == 1 { for (i = 1; i <= NF; i++) if ($i == "seconds") c = i }
            FNR > 1 { last[FILENAME] = $c } END { for (f in last) sum += 3600 / 13 / (29000 / 6400) / last[f]; printf "%.3g", sum }' {} +)"
    done
    line="* Cells an hour (2 x 500, Multi30k) on ${gpu:-a CPU with $(nproc --all) cores}, by cells at a time: ${found#; }."
    sed -i -e '/^\* Cells an hour/d' -e "/^\* In six of seven starts/i $line" docs/reference/gpu.md
    grep -q "^\* Cells an hour" docs/reference/gpu.md
    echo "docs/reference/gpu.md: $line"
    exit
fi
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
