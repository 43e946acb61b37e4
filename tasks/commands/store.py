"""`scripts/store.py`: list and verify the store."""

from collections import Counter

from repro.store import Store, outputs_folder


def main(what: str, outputs: str) -> int:
    """List or verify the store in a folder, or in the default one if `outputs` is empty.

    Returns exit status 1 if a cell is damaged. Raises ValueError if there is no store.
    """
    store = Store(outputs or outputs_folder())
    if not store.root.is_dir():
        raise ValueError(f"there is no store {store.root}; set paths.outputs=FOLDER")
    states: Counter[str] = Counter()
    for place, state, why in store.verify():
        states[state] += 1
        if what != "verify" or why:
            print(f"{state:10s} {place}" + (f": {why}" if why else ""))
    print(", ".join(f"{count} {state}" for state, count in states.items()) or "the store is empty")
    return int("damaged" in states)
