"""`make pages`: write the gallery of mappings, the type stubs and the package's docstring from the code."""

from _entry import ROOT, command


@command
def main() -> None:
    from tasks.commands.mapping_pages import pages

    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print("written:", ", ".join(pages()) + "; `git diff` shows what changed")
