"""`make pages`: write the gallery of mappings, type stubs, the package's docstring and docs/reference/api.txt, all from the code."""

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands.mapping_pages import pages

    for name, text in pages().items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
    print(
        "written: docs/reference/mappings, docs/reference/api.txt, sparse_attention/__init__.pyi, the docstring of sparse_attention/__init__.py; `git diff` shows what changed"
    )
