"""Compute grid features of the images of VQA v2 and store them for training.

    python scripts/extract_features.py --path FOLDER [--device cuda --amp] [--backbone resnet152|tiny] [--weights FILE]

    --path         folder with train2014.zip and val2014.zip (or the folders) and the JSON files
    --weights      file with a state dict (default: torchvision's, downloaded)
    --size         pixels per side (default 448)               --batch-size   images at a time (default 16)
    --amp          half precision                              --check        verify the checksums of the store and stop

Examples: python scripts/extract_features.py --path vqa2 --device cuda --amp; python scripts/extract_features.py --path vqa2 --check;
          python scripts/extract_features.py --path vqa2 --backbone tiny
Features go into FOLDER/features (99 GB for all 123,287 images at 14 x 14 x 2048), completely or not at all.
Next: python scripts/train.py task=vqa profile=paper data.path=FOLDER
"""

from pathlib import Path
from typing import Literal

from _entry import command


@command
def main(
    *, path: Path, backbone: str = "resnet152", weights: str | None = None, size: int = 448, batch_size: int = 16,
    device: Literal["cpu", "cuda"] = "cpu", amp: bool = False, check: bool = False,
) -> None:  # fmt: skip
    from tasks.commands.data import extract
    from tasks.data.read.own import setting

    print(extract(path, backbone, weights, size, check, batch_size=batch_size, device=device, amp=amp))
    print(f"Next: python scripts/train.py task=vqa profile=paper {setting(path=str(path))}")
