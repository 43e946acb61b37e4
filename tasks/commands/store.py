"""`scripts/store.py`: list, verify and clean the store."""

from collections import Counter

from repro.store import Store, maintenance, outputs_folder


def main(what: str, outputs: str) -> int:
    """List, verify or clean the store in a folder, or in the default one if `outputs` is empty.

    Returns exit status 1 if a cell is damaged. Raises ValueError if there is no store.
    """
    store = Store(outputs or outputs_folder())
    if not store.root.is_dir():
        raise ValueError(f"there is no store {store.root}; set paths.outputs=FOLDER")
    if what == "clean":
        removed = maintenance.clean(store)
        print("\n".join([*removed, f"{len(removed)} leftovers removed"]))
        return 0
    states: Counter[str] = Counter()
    for one in maintenance.verify(store):
        states[one.state] += 1
        if what != "verify" or one.why:
            print(f"{one.state:10s} {one.place}" + (f": {one.why}" if one.why else ""))
    print(", ".join(f"{count} {state}" for state, count in states.items()) or "the store is empty")
    return int("damaged" in states)
