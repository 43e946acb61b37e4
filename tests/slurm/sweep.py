"""`python sweep.py STORE FLAGS [OVERRIDE ...]`: eight toy cells with a mapping that can be told to wait and to fail.

The mapping reads its orders from files in FLAGS while it runs: `hold-3.0` (in the middle of a training of that sharpness, behind its
first checkpoint), `raise-4.0`. They change how long a cell takes, never what it computes.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TOY = "task=toy data.limits={train:64,dev:16,test:8} train.max_epochs=4 train.batch_size=4 model.embed_dim=8".split()
TOY += "model.hidden_dim=8 model.layers=1 decode.beam=2 decode.max_len_b=8 runtime.save_minutes=0.0001".split()
SHARPNESS, SEEDS = (1.0, 2.0, 3.0, 4.0), (1, 2)
BEHIND = 40  # calls: updates that have been saved, of the 64
MAPPING = '''
import itertools
import time
from pathlib import Path

import sparse_attention as sa
from repro import signals

FLAGS = Path({flags!r})
CALLS = itertools.count()


def moody(scores, mask, sharpness=1.0):
    """Sparsemax of the scores times sharpness; obeys the files in FLAGS."""
    if (FLAGS / f"raise-{{sharpness}}").exists():
        raise RuntimeError("out of sorts")
    if next(CALLS) >= {behind}:
        while (FLAGS / f"hold-{{sharpness}}").exists() and not signals.asked():
            time.sleep(0.05)
    return sa.sparsemax(sharpness * scores, mask=mask)


sharp = sa.registry.Param("sharpness", low=0.0, meaning="factor on the scores")
sa.register("moody", params=(sharp,), paper="none: a test")(moody)
'''


def page(sharpness=SHARPNESS):
    show = [{"metric": "test/bleu", "label": "BLEU"}, {"metric": "dev/loss", "label": "loss"}]
    rows = []
    for s in sharpness:
        overrides = ["mapping.name=moody", f"+mapping.sharpness={s}"]
        rows.append({"label": f"moody {s}", "mapping": "custom", "overrides": overrides})
    return {
        "title": "A sweep",
        "rows": rows,
        "columns": {"toy": {"label": "toy", "overrides": TOY, "show": show}},
        "profiles": {"demo": {"columns": ["toy"], "seeds": list(SEEDS)}},
    }


def main(store: str, flags: str, *overrides: str) -> int:
    from repro.plan.experiment import read
    from repro.store import Store
    from tasks.commands import driver, reproduce

    if any(o == "launcher=slurm" for o in overrides):
        from repro.launch import slurm

        slurm.POLL_SECONDS, slurm.SETTLE_SECONDS = 1.0, 3.0
    driver.POLL_SECONDS = 0.5
    own = Path(flags) / "moody.py"
    own.write_text(MAPPING.format(flags=flags, behind=BEHIND))
    asked = [f"paths.outputs={store}", f"paths.data={Path(store).parent / 'data'}", f"plugins=[{own}]", *overrides]
    loaded = [read(page(), "sweep", "demo")]
    return reproduce.Driver(reproduce.prepared(reproduce.outline(loaded, asked)), Store(store)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
