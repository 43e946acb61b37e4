"""Write requirements.lock: every package of the `repro` and `dev` extras with version and hashes, for Python 3.11 to 3.14 on Linux and macOS.

uv resolves it; pip can install it too.
"""

import sys

from _entry import command


@command
def main() -> int:
    from tasks.commands import setup

    return setup.lock()


if __name__ == "__main__":
    sys.exit(main())
