"""Write a trained model as a folder of its own, without paths of this machine, to archive or share.

    python scripts/export.py CELL FOLDER [--onnx] [--fairseq SOURCES] [plugins=[FILE.py]] [paths.outputs=FOLDER]
    CELL       an id or its beginning, a folder in the store, or TASK/MAPPING[,KEY=VALUE ...]
    FOLDER     a new folder with weights, vocabulary, scores and model card; scripts/predict.py and load_cell read it
    --fairseq  also write a checkpoint for fairseq-generate, and encode the lines of the file SOURCES for it
    --onnx     also write model.onnx; for classifiers, image questions and multilabel models whose mapping is over rows
    plugins    the Python files of CELL's own mapping, which are copied; they must be as they were in its training

Examples: python scripts/export.py translation/sparsemax,seed=1 models/sparsemax
          python scripts/export.py 0f3a models/mine --onnx
          python scripts/export.py translation/softmax models/softmax --fairseq test.fr
"""

import shlex
from pathlib import Path

from _entry import command


@command
def main(cell: str, folder: str, *, onnx: bool = False, fairseq: Path | None = None, plugins: str = "", paths_outputs: str | None = None) -> None:  # fmt: skip
    if fairseq and not fairseq.is_file():
        raise ValueError(f"--fairseq={fairseq} is not a file; name a file with one source text per line")
    from repro.plugins import listed, naming
    from tasks.use.export import export

    sources = fairseq.read_text(encoding="utf-8").splitlines() if fairseq else None
    made = export(cell, folder, paths_outputs, sources, onnx=onnx, plugins=listed(plugins))
    own = naming([str(made / "plugins" / Path(plugin).name) for plugin in listed(plugins)])
    print(f"{made}\nnext: python scripts/predict.py {(place := shlex.quote(str(made)))}{own} < input")
    if sources is not None:
        print(f"or: fairseq-generate {place}/fairseq/data --path {place}/fairseq/model.pt --task sa_pairs "
              "--user-dir tasks/fairseq_plugin --required-batch-size-multiple 1")  # fmt: skip
