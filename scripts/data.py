"""List, fetch, verify and look at data sets.

python scripts/data.py list
python scripts/data.py fetch NAME [NAME ...] [--root FOLDER] [--mirror FOLDER] [--path FOLDER]
python scripts/data.py verify NAME [the same options]   hold what is here against what is known; fetches nothing
python scripts/data.py show NAME [the same options]     the sizes, where it comes from and a few test records

Examples: python scripts/data.py fetch libreoffice_help easy_vqa; python scripts/data.py show imdb --path aclImdb.tar.gz;
          python scripts/data.py fetch multi30k --mirror /data/mirror
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
COMMANDS = (("fetch", "bring data sets into the cache and verify them"), ("verify", "hold what is here against what is known"), ("show", "look at a data set"))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Next: python scripts/data.py list",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all data sets")
    for command, text in COMMANDS:
        sub = commands.add_parser(command, help=text, epilog="Next: python scripts/train.py data=NAME")
        sub.add_argument("names", nargs="+", metavar="NAME")
        sub.add_argument("--root", default="data/cache", help="folder for downloads (default: data/cache)")
        sub.add_argument("--mirror", help="folder of local copies, for sets that are read from a mirror")
        sub.add_argument("--path", help="folder or file of a set got by hand")
    args = parser.parse_args()
    from tasks import data

    vectors = set(data.manifest_names()) - set(data.set_names())
    try:
        if args.command == "list":
            for name in data.manifest_names():
                manifest = data.load_manifest(name)
                ways = ", ".join(source["kind"] for source in manifest.get("sources", ())) or manifest["kind"]
                print(f"{name:22s} {ways:18s} {manifest['title']}\n{'':41s} {manifest['get']}")
            return 0
        if unknown := [name for name in args.names if name not in data.manifest_names()]:
            print("\n".join(p for name in unknown for p in data.problems({"name": name})), file=sys.stderr)
            return 2
        options = {"mirror": args.mirror, "path": args.path}
        for name in args.names:
            if name in vectors:
                print(data.fetch_vectors(name, args.root, data.Progress(), fetching=args.command == "fetch"))
                continue
            done = data.verify if args.command == "verify" else data.fetch
            print(done(name, args.root, options, data.Progress()))
            if args.command == "show":
                show(name, args.root, {k: v for k, v in options.items() if v is not None})
    except data.DataError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what has been fetched", file=sys.stderr)
        return 130
    return 0


def show(name: str, root: str, options: dict[str, str]) -> None:
    """Print what is known of a set and five test records."""
    from tasks import data

    found = data.open_data({"name": name, **options}, root, data.Progress())
    for said in (*found.notes, *found.shortfalls):
        print(f"  {said}")
    for record in islice(found.read(data.NullProgress()).get("test", ()), 5):
        print(f"  {record}")


if __name__ == "__main__":
    sys.exit(main())
