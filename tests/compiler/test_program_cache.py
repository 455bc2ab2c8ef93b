"""Which compiled programs are kept on disk, and for which machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from undrift.compiler import inductor


@pytest.mark.parametrize(("capability", "bits"), [("default", 1), (None, None)])
def test_programs_on_disk_are_told_apart_by_what_they_were_made_for(
    capability: str | None, bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of another processor, or for another number of threads, would crash or be slow."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if capability is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with inductor.inductor_config():
        assert config.cpp.simdlen == (bits or pick_vec_isa().bit_width() or 1)
        assert config.cpp.threads == 3


@pytest.mark.parametrize(("numbers", "kept"), [(inductor.MAX_CACHED_CONSTANTS, True), (10**6, False)])
def test_programs_with_large_frozen_parts_are_not_kept(numbers: int, kept: bool) -> None:
    frozen = torch.ones(numbers)
    module, _ = inductor.trace(lambda x: [x + frozen], [torch.ones(1)], lambda graph: True)
    assert (inductor.constants_in(module) <= inductor.MAX_CACHED_CONSTANTS) is kept


def test_a_cache_that_cannot_be_is_replaced_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(inductor.CACHE, str(tmp_path / "file" / "programs"))
    own = inductor.replace_unusable_cache()
    assert own is not None and os.environ[inductor.CACHE] == own.name and Path(own.name).is_dir()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith("cannot be used (Not a directory): compiled programs are kept for this process alone")
    own.cleanup()


def test_a_cache_that_can_be_made_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inductor.CACHE, str(tmp_path / "programs"))
    assert inductor.replace_unusable_cache() is None
    assert os.environ[inductor.CACHE] == str(tmp_path / "programs")
    monkeypatch.delenv(inductor.CACHE)
    assert inductor.replace_unusable_cache() is None


def test_with_a_cache_that_cannot_be_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = (
        "import torch, undrift as ud; ud.FedAvg; print(torch.vmap(torch.func.grad(torch.sin))(torch.zeros(2)).tolist())"
    )
    environment = os.environ | {inductor.CACHE: str(tmp_path / "file" / "programs")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[1.0, 1.0]\n" and done.stderr.count("cannot be used") == 1
