"""Write event files for TensorBoard; to see them, run `tensorboard --logdir outputs/tensorboard`.

Each cell has one file, named after its id, which is written again if the cell is resumed. TensorBoard's own writers put
the host name into the file name; this one does not.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.cell import Cell, Results
from repro.options import number
from tasks.config.files import defaults
from tasks.loggers import about


@defaults("logger/tensorboard", "tensorboard")
class Options:
    """Options for event files in a folder of the outputs."""

    timeout: float = number(above=0, high=86_400, help="time limit in seconds at the start, per epoch and at the end")


class Logger:
    """Curves, scores, heat maps and samples of one cell in `<outputs>/tensorboard/<group>/<name>/`."""

    name = "tensorboard"

    def __init__(self, cell: Cell, options: Mapping[str, Any]) -> None:
        self.cell, self.timeout = cell, options["timeout"]
        self._sent = self._last = 0

    def start(self) -> None:
        """Open the event file.

        Raises:
            ModuleNotFoundError: tensorboard is not installed.
            OSError: the file cannot be written.
        """
        from tensorboard.summary.writer.record_writer import RecordWriter

        words = about.group(self.cell), about.name(self.cell)
        parts = [re.sub(r"[^\w.=+-]+", "_", part).strip("_.") for part in words]
        folder = Path(self.cell.config["paths"]["outputs"], "tensorboard", *parts)
        folder.mkdir(parents=True, exist_ok=True)
        self.writer = RecordWriter((folder / f"events.out.tfevents.{self.cell.training_id}").open("wb"))
        self._write(file_version="brain.Event:2")
        self._text("configuration", "\n".join(f"    {key}: {value}" for key, value in about.config(self.cell).items()))

    def curve(self, rows: list[dict[str, float]]) -> None:
        from torch.utils.tensorboard import summary

        for row in rows[self._sent :]:
            self._last = int(row.get("epoch", self._last + 1))
            for key, value in row.items():
                self._write(self._last, summary=summary.scalar(key, value))
        self._sent = len(rows)
        self.writer.flush()

    def finish(self, results: Results | None, state: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import summary

        if results is not None:
            for key, value in about.scores(results).items():
                self._write(self._last, summary=summary.scalar(f"final/{key}", value))
            for split, level in results.evaluations.items():
                records = level.predictions()
                for index, png in about.heat_maps(split, level, records):
                    image = Summary.Image(encoded_image_string=png, colorspace=4)
                    value = Summary.Value(tag=f"attention/{split}/{index}", image=image)
                    self._write(self._last, summary=Summary(value=[value]))
                if records:
                    columns, data = about.samples(records)
                    cells = [[str(value).replace("|", "\\|").replace("\n", " ") for value in row] for row in data]
                    lines = [columns, ["---"] * len(columns), *cells]
                    self._text(f"samples/{split}", "\n".join(f"| {' | '.join(line)} |" for line in lines))
        self._text("state", state)
        self.writer.close()

    def _text(self, tag: str, text: str) -> None:
        from torch.utils.tensorboard import summary

        self._write(self._last, summary=summary.text(tag, text))

    def _write(self, step: int = 0, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
