"""`make pages`: write docs/reference/mappings, type stubs and the mappings in the package's docstring, all from the registry."""

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands.mapping_pages import pages

    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print(
        "written: docs/reference/mappings, sparse_attention/__init__.pyi, the docstring of sparse_attention/__init__.py; `git diff` shows what changed"
    )
