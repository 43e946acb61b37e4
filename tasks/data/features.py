"""Grid features of images, from torchvision's ResNet-152 without pooling.

Martins et al. 2020: images resized to 448 x 448, ImageNet normalisation, output 14 x 14 x 2048 of the last convolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tasks.data.cache import write_meta
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import publish_folder, sha256_of
from tasks.data.images import Files, Stored, decode
from tasks.data.progress import Progress

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGEST = float(torch.finfo(torch.float16).max)


@dataclass
class Backbone:
    """A network [B, 3, size, size] -> [B, channels, rows, columns]; `name` gives model, weights and preprocessing."""

    net: nn.Module
    name: str
    size: int
    grid: tuple[int, int]
    channels: int


def resnet(weights: str | None = None, size: int = 448) -> Backbone:
    """ResNet-152 without pooling and classifier.

    Args:
        weights: file with a state dict, or None to download torchvision's weights (ResNet152_Weights.IMAGENET1K_V1, 230
            MB).
        size: image height and width in pixels.
    Raises:
        DataUnavailable: the weights are unavailable.
        DataError: the file is damaged or belongs to another network.
    """
    from torchvision.models import ResNet152_Weights, resnet152

    net = resnet152(weights=None)
    if weights is not None:
        path = Path(weights)
        origin = sha256_of(path)[:16]
        try:
            net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # truncated, not a checkpoint, one that contains code, or of another network
            why = f"{path}: {type(error).__name__}: {error}".split("\n", 1)[0]
            step = "fetch the file again, or give resnet152's file"
            raise DataError(f"{path.name} is not a file of resnet152's weights", why, step) from error
    else:
        preset = ResNet152_Weights.IMAGENET1K_V1
        origin = str(preset)
        try:
            net.load_state_dict(preset.get_state_dict(progress=True, check_hash=True))
        except Exception as error:  # from urllib, from ssl, or a wrong hash: in each case there are no weights
            where = f"{preset.url}: {type(error).__name__}: {error}"
            step = "fetch that file on another machine and give its path by --weights"
            raise DataUnavailable("the weights of resnet152 cannot be downloaded", where, step) from error
    cut = nn.Sequential(*list(net.children())[:-2]).eval()
    return Backbone(cut, f"resnet152|weights:{origin}|size:{size}", size, (size // 32, size // 32), 2048)


def extract(
    source: Files,
    keys: Sequence[str],
    model: Backbone,
    folder: Path,
    progress: Progress,
    *,
    batch_size: int = 16,
    device: str = "cpu",
    amp: bool = False,
) -> Stored:
    """Compute the features of `keys` in the new folder `folder`, completely or not at all; 0.8 MB an image of VQA v2.

    Args:
        device: "cpu" or "cuda".
        amp: compute in half precision if the device supports it (the features are stored as float16 in either case).

    Raises DataError if the folder exists already, or the disk is full.
    """
    if folder.exists():
        raise DataError(f"{folder} exists already", str(folder), "delete it, then run the same command again")
    net, pin, bad = model.net.to(device), device == "cuda", {}
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(STD, device=device).view(3, 1, 1)
    shape = (len(keys), model.grid[0] * model.grid[1], model.channels)
    with publish_folder(folder) as made, torch.inference_mode():
        array = np.lib.format.open_memmap(made / "features.npy", "w+", np.float16, shape)
        for start in progress.over(range(0, len(keys), batch_size), "extracting features"):
            places, pixels = [], []
            for place, key in enumerate(keys[start : start + batch_size], start):
                try:
                    pixels.append(torch.from_numpy(decode(source.read(key), (model.size, model.size)).copy()))
                    places.append(place)
                except DataError as error:
                    bad[key] = str(error)
            if not pixels:
                continue
            batch = torch.stack(pixels)  # [B, size, size, 3] uint8
            batch = batch.pin_memory() if pin else batch
            x = (batch.to(device, non_blocking=pin).permute(0, 3, 1, 2).float() / 255 - mean) / std
            with torch.autocast(device, enabled=amp, dtype=torch.float16 if pin else torch.bfloat16):
                y: Tensor = net(x)
            cells = y.flatten(2).transpose(1, 2).float().cpu()
            whole = (cells.abs() <= LARGEST).flatten(1).all(1)
            for place in [p for p, fits in zip(places, whole.tolist()) if not fits]:
                bad[keys[place]] = "its features are not numbers that half precision holds"
            array[places] = torch.where(whole[:, None, None], cells, 0.0).numpy()
        array.flush()
        write_meta(made, {"extractor": model.name, "grid": list(model.grid), "keys": list(keys), "bad": bad})
    if bad:
        some = ", ".join(list(bad)[:5])
        progress.say(f"{len(bad)} of {len(keys)} images have no features; zeros take their place: {some}")
    return Stored(folder, "features")
