"""The page's files: read once at the start, served from memory by their exact name."""

from importlib.resources import files

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
INDEX = "/index.html"


def read_pages() -> dict[str, tuple[bytes, str]]:
    """Content and type by path; nothing else can ever be served."""
    folder = files("steadyhand.runtime.panel") / "page"
    pages = {}
    for file in folder.iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            pages[f"/{file.name}"] = (file.read_bytes(), kind)
    pages["/"] = pages[INDEX]
    return pages
