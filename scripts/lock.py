"""Write requirements.lock for Python 3.11 to 3.14 on Linux and macOS.

It lists every package needed for the extras `repro` and `dev`, with versions and hashes. uv resolves the versions; pip
can install the file, too.
"""

from _entry import command


@command
def main() -> int:
    from tasks.commands import setup

    return setup.lock()
