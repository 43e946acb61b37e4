"""Look after the store: what is there, whether it is whole, and how it gets to another machine.

    python scripts/store.py list   [paths.outputs=FOLDER]      every training and evaluation with its state
    python scripts/store.py verify                             check every file; names what is damaged, exit status 1
    python scripts/store.py clean                              remove what killed processes left; nothing that is finished
    python scripts/store.py du                                 how much space what takes
    python scripts/store.py export FILE.tar [TASK/MAPPING|ID ...]   finished cells, each checked
    python scripts/store.py import FILE.tar                    each checked again; what is finished here stays

Examples: python scripts/store.py verify; python scripts/store.py export cells.tar translation/fusedmax;
          python scripts/store.py import cells.tar paths.outputs=/data/outputs

Damaged cells are never deleted: asked for again, they are moved aside and made anew (docs/store.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
COMMANDS = ("list", "verify", "clean", "du", "export", "import")


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when something is damaged or refused, 2 for arguments that are not possible."""
    from repro.store import Store, StoreError, maintenance
    from tasks.load import outputs_folder

    outputs = [a.partition("=")[2] for a in arguments if a.startswith("paths.outputs=")]
    command, *rest = [a for a in arguments if not a.startswith("paths.outputs=")] or ["--help"]
    if command not in COMMANDS or (command in ("export", "import")) != bool(rest):
        print(__doc__, file=sys.stderr if command in COMMANDS else sys.stdout)
        return 0 if command in ("-h", "--help") else 2
    store = Store((outputs or [outputs_folder()])[-1])
    if command != "import" and not store.root.is_dir():
        print(f"error: there is no store {store.root}; set paths.outputs=FOLDER", file=sys.stderr)
        return 2
    try:
        if command == "du":
            for what, (folders, size) in maintenance.sizes(store).items():
                print(f"{size / 2**20:10.1f} MiB  {folders:5d} folders  {what}")
            return 0
        if command == "clean":
            removed = maintenance.clean(store)
            print("\n".join([*removed, f"{len(removed)} leftovers removed"]))
            return 0
        file = Path(rest[0]) if rest else Path()
        seen = {
            "list": lambda: maintenance.verify(store), "verify": lambda: maintenance.verify(store),
            "export": lambda: maintenance.export(store, file, rest[1:]), "import": lambda: maintenance.take_in(store, file),
        }[command]()  # fmt: skip
        states: dict[str, int] = {}
        for one in seen:
            states[one.state] = states.get(one.state, 0) + 1
            if command != "verify" or one.why:
                print(f"{one.state:10s} {one.place}" + (f": {one.why}" if one.why else ""))
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{count} {state}" for state, count in states.items()) or "nothing is there")
    return int(bool({"damaged", "refused"} & states.keys()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
