"""Writing a page: one HTML file with its style, script, texts and data inside, that asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.core.errors import MsprobeError
from msprobe.report.page_data import Block

if TYPE_CHECKING:
    import jinja2

_STYLES = ("page.css", "records.css", "charts.css")
_SCRIPTS = (
    "elements.js",
    "labels.js",
    "numbers.js",
    "data.js",
    "store.js",
    "virtual_list.js",
    "tree.js",
    "records.js",
    "detail.js",
    "overview.js",
    "plots.js",
    "trend.js",
    "heat_map.js",
    "keyboard.js",
    "main.js",
)
_BUFFERED = 64


class ReportError(MsprobeError, ValueError):
    """A page cannot be written; the message says why and what to do."""


def write_page(out: Path, title: str, blocks: Iterator[Block]) -> Path:
    """Write a page.

    Parameters
    ----------
    out
        The file to write; its folder is made.
    title
        Title of the document.
    blocks
        The data; taken one by one while the file is written.

    Raises
    ------
    ReportError
        jinja2 is not installed.
    OSError
        The file cannot be written.
    """
    template = _environment().get_template("page.html.jinja")
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    out.parent.mkdir(parents=True, exist_ok=True)
    stream = template.stream(
        title=title,
        style="\n".join(_text(name) for name in _STYLES),
        script=script,
        script_digest=digest,
        labels=json.dumps(json.loads(_text("labels.json")), ensure_ascii=False).replace("<", "\\u003c"),
        blocks=blocks,
    )
    stream.enable_buffering(_BUFFERED)
    with out.open("wb") as file:
        stream.dump(file, encoding="utf-8")
    return out


def _environment() -> jinja2.Environment:
    try:
        import jinja2  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ReportError("an HTML page needs jinja2: pip install 'msprobe[report]'") from error
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def _script() -> str:
    """Return all script files as one function: their names do not become properties of the window."""
    return '(() => {\n"use strict";\n' + "\n".join(_text(name) for name in _SCRIPTS) + "})();\n"


@cache
def _text(name: str) -> str:
    return resources.files("msprobe.report").joinpath("templates", name).read_text("utf-8")
