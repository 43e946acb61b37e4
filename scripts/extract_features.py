"""Compute grid features of VQA v2's images into a store that training maps into memory. Run again to continue.

    python scripts/extract_features.py --path FOLDER [--device cuda --amp] [--backbone resnet152|tiny] [--weights FILE]

Examples: python scripts/extract_features.py --path vqa2 --device cuda --amp; python scripts/extract_features.py --path vqa2 --check;
          python scripts/extract_features.py --path vqa2 --backbone tiny
FOLDER holds train2014.zip and val2014.zip (or the folders) and the JSON files; features go to FOLDER/features (99 GB for
all 123,287 images at 14 x 14 x 2048). Several processes may share the work. --check verifies every checksum instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
NEXT = "Next: python scripts/train.py task=vqa profile=paper data.path={}"


def images_of(path: Path, progress):
    """The images that the questions of the set ask about, and their keys. Raises DataUnavailable."""
    from tasks.data import DataUnavailable, open_data

    found = open_data({"name": "vqa2", "path": str(path)}, path, progress)
    source = found.about["images"].source
    if source is None:
        raise DataUnavailable(
            "the images are missing", str(path), "lay train2014.zip and val2014.zip, or the folders, there"
        )
    return source, sorted({question.image for split in found.read(progress).values() for question in split})


def main() -> int:
    from tasks.data import DataError, Progress, features
    from tasks.data.feature_store import FeatureStore

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=NEXT.format("FOLDER")
    )
    parser.add_argument("--path", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--backbone", default="resnet152", choices=features.BACKBONES)
    parser.add_argument("--weights", help="file of a state dict (default: torchvision's, by download)")
    parser.add_argument("--size", type=int, default=448, help="pixels of a side (default 448)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--shard-size", type=int, default=512, help="images a file (default 512: 411 MB)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--amp", action="store_true", help="half precision")
    parser.add_argument("--check", action="store_true", help="verify the store's checksums and stop")
    args = parser.parse_args()
    progress, folder = Progress(), args.path / "features"
    try:
        if not args.check:
            source, keys = images_of(args.path, progress)
            model = features.backbone(args.backbone, args.weights, args.size)
            features.extract(
                source, keys, model, folder, progress,
                batch_size=args.batch_size, shard_size=args.shard_size, device=args.device, amp=args.amp,
            )  # fmt: skip
        store = FeatureStore(folder, verify=args.check)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    n = len(store.layout.keys)
    print(f"{folder}: {n:,} images, {len(store.missing)} shards missing, {len(store.bad)} images without features")
    print(NEXT.format(args.path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
