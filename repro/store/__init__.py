"""The store of trainings and evaluations on disk: safe with many writers, never half-written, and checked when read.

    <root>/cells/<task>/<mapping>/<cell_id>/          a training
        config.yaml  weights.safetensors  encoding/  metrics.json  curves.csv  provenance.json  manifest.json
        checkpoints/  status.json  log.txt  claim
        evaluations/<id>/                             an evaluation of it
            config.yaml  metrics.json  predictions.jsonl.gz  attention.safetensors  provenance.json  manifest.json

A training's folder and an evaluation's folder are called levels. `manifest.json` lists every file of its own level with
its sha256. It is written last, so a level with a manifest is finished. If the files of a finished level differ from its
manifest, the level is damaged: the error names it, and the next run moves it aside and makes it again, so no finished
level is deleted. `claim` is the lock. docs/reference/store.md has the rules for several processes and machines.
"""

from repro.store.store import Damaged, Entry, Evaluation, Level, Store, check_names, elsewhere, outputs_folder
