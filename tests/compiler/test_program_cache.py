"""Which compiled programs are kept on disk, and for which machine."""

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
