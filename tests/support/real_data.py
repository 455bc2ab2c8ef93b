"""Where the real data are, for the tests that need them."""

import os
import subprocess
import sys
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


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of CIFAR-10, which are kept as sheets of images.  Its tests are an xdist_group."""
    script, folder = real_data() / "restore_cifar.py", tmp_path_factory.mktemp("cifar10")
    if not script.is_file():
        pytest.skip(f"no real data: there is no {script}")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder
