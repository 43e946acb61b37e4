"""What mkdocs does for the site (mkdocs.yml): README as first page, the pages of the API and of the mappings, links,
formulas, pictures of results; then it checks the site.

The pages must also read well as files, so their links are relative to the repository. A link to a file that is not on
the site becomes its text with the path; a link to a folder leads to the first page of its part of the navigation; a
link to a mapping's row of the gallery leads to the mapping's page, which only the site has.
"""

import functools
import html
import importlib
import inspect
import json
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import griffe
import math_core
from markdown.extensions.toc import slugify
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import sparse_attention as sa  # noqa: E402
from tasks.commands import mapping_pages  # noqa: E402

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)  # from pymdownx.arithmatex
LATEX = math_core.LatexToMathML(fancy_error=False)
SCROLLS = "display: inline-block; max-width: 100%; overflow-x: auto; overflow-y: hidden; vertical-align: middle"
MARKUP = re.compile(r"\\[A-Za-z({\[]+|:(?:math|func|class):|^\.\. \w+::", re.M)
GALLERY = "docs/reference/mappings/README.md"
MODULES = ("nn", "attention", "losses", "quality", "structured", "integrations.transformers")
MODULES += ("integrations.sdpa", "integrations.entmax", "kernels")


class Roles(griffe.Extension):
    """Docstrings of the API's page: their Sphinx roles as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = mapping_pages.roles(obj.docstring.value)


def on_config(config: Any) -> Any:
    config.nav = [_with_folders(part) for part in config.nav]
    return config


def _with_folders(part: Any) -> Any:
    """A part of the navigation, its folders as their pages, README first."""
    if isinstance(part, dict):
        return {name: _with_folders(inside) for name, inside in part.items()}
    if isinstance(part, list):
        lists = [_with_folders(one) for one in part]
        return [page for one in lists for page in (one if isinstance(one, list) else [one])]
    if not part.endswith("/"):
        return part
    names = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / part).rglob("*.md")]
    names += [name for name in made() if name.startswith(part) and name.endswith(".md")]
    return sorted(names, key=lambda name: (not name.endswith("README.md"), posixpath.basename(name)))


def _first_page(nav: Any, folder: str) -> str:
    """The first page of the part of the navigation that is named like a folder of docs."""
    (found,) = [part[folder.capitalize()] for part in nav if folder.capitalize() in part]
    while not isinstance(found, str):
        found = found[0] if isinstance(found, list) else next(iter(found.values()))
    return found


@functools.cache
def made() -> dict[str, str]:
    """Path -> text of the pages and pictures that are not files in docs."""
    first = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"index.md": first, "reference/api.md": api(), **mapping_pages.site()}


def on_files(files: Any, config: Any) -> Any:
    for name, text in made().items():
        files.append(File.generated(config, name, content=text))
    return files


def api() -> str:
    """What each name returns; a heading for each public function, from the stubs that `make pages` writes, and for each public module."""
    stubs = (ROOT / "sparse_attention" / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"^from \.(\S+) import (\w+) as \w+$", stubs, re.M)
    names.sort(key=lambda found: not found[0].startswith(("mappings", "attention")))  # the functions first
    found = [(f"sparse_attention.{module}.{name}", name, getattr(sa, name)) for module, name in names]
    for module in map(importlib.import_module, [f"sparse_attention.{name}" for name in MODULES]):
        inside = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
        found += [
            (_anchor(f"{module.__name__}.{name}", thing), f"{module.__name__.partition('.')[2]}.{name}", thing)
            for name, thing in inside.items()
            if inspect.isfunction(thing) and not name.startswith("_") and thing not in (one[2] for one in found)
        ]
    rows = [f"| [`sa.{name}`](#{anchor}) | {_returned(name, thing)} |" for anchor, name, thing in found]
    told = ["# API", "", "| name | returns |", "|---|---|", *rows, "", "## Functions and classes", ""]
    told += [f"::: sparse_attention.{module}.{name}" for module, name in names]
    for module in MODULES:
        name = f"sparse_attention.{module}"
        told += ["", f"## {name}", "", f"::: {name}", "    options: {show_root_heading: false}"]
        told += ["", *(f"::: {anchor}" for anchor, *_ in found if re.fullmatch(rf"{name}\.(\w+)\.\1", anchor))]
    return "\n".join(told) + "\n"


def _anchor(name: str, thing: Any) -> str:
    """The anchor of a function; a module hides the function of its own name, which gets an anchor inside of it."""
    return f"{name}.{thing.__name__}" if thing.__module__ == name else name


def _returned(name: str, thing: Any) -> str:
    """What a function returns, in a sentence: that of its section Returns, if there is one, or the docstring's first."""
    told = inspect.getdoc(thing) or ""
    section = re.search(r"^Returns:\n(.*?)(?:\n\S|\Z)", told, re.M | re.S)
    over = sa.spec(name).over if name in sa.names() else ""
    said = section[1] if section else "shape of scores." if over == "row" else told.split("\n\n")[0]
    first = re.split(r"(?<=\.)(?<! al\.)(?<! Eq\.) |: - ", " ".join(said.split()))[0]
    return mapping_pages.roles(first).removesuffix(".").replace("|", "\\|")


def pictures(page: str, shown: str) -> str:
    """A section with the pictures of a page of results that other pages have.

    Args:
        page: its path in docs.
        shown: its text; a picture that it shows is left out.
    """
    folder, name = posixpath.split(page)
    stem = {"figure5": "laha2018_figure5_demo"}.get(Path(name).stem, Path(name).stem)
    told = []
    for other in ("results/figures/trained.md", "claims.md"):
        for section in re.split(r"(?m)^(?=##+ )", (ROOT / "docs" / other).read_text(encoding="utf-8"))[1:]:
            made_from = set(re.findall(r"\]\(\.\./(\w+)\.md\)", section))
            made_from |= {
                "_".join(one) for one in re.findall(r"`(\w+?)(?:`?,? profile[= ]|_)(demo|cpu|gpu|paper)\b", section)
            }
            picture = re.search(r"!\[(.*?)\]\((.*?)\)", section)
            if stem in made_from and picture and posixpath.basename(picture[2]) not in shown:
                at = posixpath.relpath(posixpath.dirname(other) or ".", folder)
                first, said = section.splitlines()[0], re.search(r"^> (.*)", section, re.M)
                title = first.lstrip("# ")
                anchor = slugify(title, "-")
                told += ["", f"![{picture[1]}]({posixpath.join(at, picture[2])})", ""]
                told += [f"[{title}]({posixpath.relpath(other, folder)}#{anchor})" + (f": {said[1]}" if said else "")]
    return "\n".join(["", "## Pictures of these results", *told, ""]) if told else ""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    folder = "" if page.file.src_uri == "index.md" else posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    if folder.startswith("docs/results") and folder != "docs/results/figures":
        markdown += pictures(page.file.src_uri, markdown)

    def link(found: re.Match[str]) -> str:
        picture, text, address = found.groups()
        path, _, anchor = address.partition("#")
        full = posixpath.normpath(posixpath.join(folder, path)) if path else f"docs/{page.file.src_uri}"
        if full == GALLERY and f"reference/mappings/{anchor}.md" in made():
            full, anchor = f"docs/reference/mappings/{anchor}.md", ""
        elif "://" in address or not path:
            return found[0]
        if full == "README.md":
            full = "docs/index.md"
        if re.fullmatch(r"docs/\w+", full) and (ROOT / full).is_dir():
            full = f"docs/{_first_page(config.nav, posixpath.basename(full))}"
        inside = full.removeprefix("docs/")
        if full.startswith("docs/") and (Path(full).suffix == ".md" or picture or files.get_file_from_path(inside)):
            start = posixpath.dirname(page.file.src_uri) or "."
            return f"{picture}[{text}]({posixpath.relpath(inside, start)}{'#' + anchor if anchor else ''})"
        if not (ROOT / full).exists():
            raise PluginError(f"{page.file.src_uri}: the link {address} leads nowhere")
        return f"`{full}`" if text == full else f"{text} (`{full}`)"

    return LINK.sub(link, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves: the site loads no script for them and works offline."""

    def mathml(found: re.Match[str]) -> str:
        latex = html.unescape(found[2])
        try:
            drawn = LATEX.convert_with_local_state(latex, displaystyle=found[1] == "div")
        except math_core.LatexError as error:
            raise PluginError(f"{page.file.src_uri}: the formula {latex}: {error}") from error
        if found[1] == "div":
            return f'<div style="overflow-x: auto">{drawn}</div>'
        return f'<span style="{SCROLLS}">{drawn}</span>' if len(latex) > 50 else drawn  # too long for a telephone

    return FORMULA.sub(mathml, content)


# A page opened as a file may start no worker from another file, but one from its own text: the search's worker, here.
WORKER = """if (location.protocol === "file:") {
  const source = new Blob([%s], {type: "text/javascript"});
  window.Worker = class extends Worker { constructor() { super(URL.createObjectURL(source)); } };
}
"""


def on_post_build(config: Any) -> None:
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.js")
    written = WORKER % json.dumps(worker.read_text(encoding="utf-8"))
    (Path(config.site_dir) / "search" / "iframe-worker.js").write_text(written, encoding="utf-8")
    if found := faults(Path(config.site_dir)):
        raise PluginError("\n  ".join([f"{len(found)} faults of the built site:", *found[:30]]))


class _Page(HTMLParser):
    """What a built page links to, what it loads, its anchors, and its text outside code and formulas."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.text, self._inside = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.links |= {given["href"]} if tag == "a" and "href" in given else set()
        self.loads |= {given[name] for name in ("src", "href") if tag != "a" and name in given}
        self._inside += tag in ("code", "pre", "script", "style", "math")

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag in ("code", "pre", "script", "style", "math")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._inside else data


def faults(site: Path) -> list[str]:
    """What is wrong in a built site: dead links and anchors, files loaded from elsewhere, markup shown as text."""
    paths = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in paths}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in sorted(page.links | page.loads):
            scheme, host, target, _, anchor = urlsplit(address)
            if scheme or host:
                if address in page.loads and scheme != "data":
                    found.append(f"{where} loads {address} from elsewhere")
                continue
            to = (path.parent / unquote(target)).resolve() if target else path
            to = to / "index.html" if to.is_dir() else to
            if not to.is_file():
                found.append(f"{where} links to {address}, which is not there")
            elif anchor and to in pages and unquote(anchor) not in pages[to].anchors:
                found.append(f"{where} links to {address}, which has no such anchor")
        found += [f"{where} shows {one[0]!r} as text" for one in MARKUP.finditer(page.text)]
    return found
