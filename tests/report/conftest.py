"""Makes the modules that several report tests share importable, and starts the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from report_browser import Browser

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, started once. Without one the tests that need it are skipped, unless MSPROBE_REQUIRE_BROWSER=1."""
    from report_browser import MISSING, Browser, programs

    found = programs()
    if found is None:
        if os.environ.get("MSPROBE_REQUIRE_BROWSER") == "1":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    window = Browser(*found)
    yield window
    window.close()
