"""Max pooling rewritten for the compiler: the same bits as torch's."""

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift.compiler.inductor import trace
from undrift.compiler.kernels.max_pool import BACKWARD, POOL
from undrift.compiler.visit import _rewrite_pooling


def pooled(x: Tensor, kernel: Any, relu: bool) -> list[Tensor]:
    """The pooled image, and the gradient of some sum of it."""
    z = x.detach().requires_grad_()
    with torch.enable_grad():
        out = F.max_pool2d(F.relu(z) if relu else z, kernel)
        weights = torch.arange(out.numel(), dtype=out.dtype).view(out.shape) + 1
        return [out.detach(), torch.autograd.grad((out * weights).sum(), z)[0]]


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    relu=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_pooling_by_windows_has_the_same_bits(size: Any, kernel: Any, relu: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, size, generator=random).float()  # many ties, zeros, all-negative windows
    x = x.contiguous(memory_format=torch.channels_last)
    graph, _ = trace(lambda x: pooled(x, kernel, relu), [x], _rewrite_pooling)
    targets = {node.target for node in graph.graph.nodes}
    assert not targets & {POOL, BACKWARD}
    for ours, theirs in zip(graph(x), pooled(x, kernel, relu), strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_no_pooling_is_left_alone() -> None:
    x = torch.randn(1, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    graph, _ = trace(lambda x: [F.avg_pool2d(x, 2)], [x], _rewrite_pooling)
    assert torch.allclose(graph(x)[0], F.avg_pool2d(x, 2))
