"""Where the real data are, for the tests that need them."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def real_data() -> Path:
    """The folder of real data, or a skip that says where it was looked for."""
    given = os.environ.get("UNDRIFT_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: neither UNDRIFT_DATA nor {folder} is a folder")
    return folder
