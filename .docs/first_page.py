"""The site opens with the page ``start``."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_post_build(config: Any) -> None:
    """Send the address of the site to its first page."""
    page = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=start/">\n'
    Path(config["site_dir"], "index.html").write_text(page, encoding="utf-8")
