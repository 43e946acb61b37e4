"""What mkdocs does for the site (mkdocs.yml): navigation from the folders, README as first page, the API's page, links.

The pages must also read well as files, so their links are relative to the repository. A link to a file that is not on
the site becomes its text with the path.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
MODULES = (
    "nn", "fused", "losses", "prox", "quality", "structured", "properties", "integrations.transformers",
    "integrations.sdpa", "integrations.entmax", "integrations.torchsparseattn", "kernels",
)  # fmt: skip


def on_config(config: Any) -> Any:
    parts = [{name.capitalize(): _pages(ROOT / "docs" / name)} for name in ("start", "guides", "reference", "results")]
    parts[1]["Guides"].insert(0, "extending.md")
    parts[2]["Reference"].insert(0, {"API": "reference/api.md"})
    parts[3]["Results"].insert(0, "claims.md")
    config.nav = [{"Overview": "index.md"}, *parts]
    return config


def _pages(folder: Path) -> list[Any]:
    """The pages of a folder, its README first, and those of the folders in it."""
    files = sorted(folder.glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
    found: list[Any] = [path.relative_to(ROOT / "docs").as_posix() for path in files]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if pages := _pages(inner):
            found.append({inner.name.capitalize(): pages})
    return found


def on_files(files: Any, config: Any) -> Any:
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/api.md", content=_api()))
    return files


def _api() -> str:
    """A heading for each public function, from the stubs that `make pages` writes, and one for each public module."""
    stubs = (ROOT / "sparse_attention" / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"^from \.(\S+) import (\w+) as \w+$", stubs, re.M)
    names.sort(key=lambda found: not found[0].startswith(("mappings", "fused")))  # the functions first
    told = ["# API", "", "## Functions and classes", ""]
    told += [f"::: sparse_attention.{module}.{name}" for module, name in names]
    for module in MODULES:
        told += ["", f"## sparse_attention.{module}", "", f"::: sparse_attention.{module}", "    options: {show_root_heading: false}"]  # fmt: skip
    return "\n".join(told) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    folder = "" if page.file.src_uri == "index.md" else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def link(found: re.Match[str]) -> str:
        picture, text, address = found.groups()
        if "://" in address or address.startswith("#"):
            return found[0]
        path, _, anchor = address.partition("#")
        full = posixpath.normpath(posixpath.join(folder, path))
        if full == "README.md":
            full = "docs/index.md"
        inside = full.removeprefix("docs/")
        if full.startswith("docs/") and (Path(full).suffix == ".md" or picture or files.get_file_from_path(inside)):
            start = posixpath.dirname(page.file.src_uri) or "."
            return f"{picture}[{text}]({posixpath.relpath(inside, start)}{'#' + anchor if anchor else ''})"
        if not (ROOT / full).exists():
            raise ValueError(f"{page.file.src_uri}: the link {address} leads nowhere")
        return f"`{full}`" if text == full else f"{text} (`{full}`)"

    return LINK.sub(link, markdown)
