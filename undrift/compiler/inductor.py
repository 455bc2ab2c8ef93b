"""The only file that uses private parts of torch: tracing, TorchInductor, and what both must be told.

They are no public interface and change from version to version, so compiling is allowed only under minor versions with which
the compiler's tests have passed (TESTED; `make test-torch`).  Torch 2.7 to 2.11 compiled some methods into something else
without a word.
"""

import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx import GraphModule

log = logging.getLogger("undrift")

TESTED = ("2.12", "2.13", "2.14", "2.15")

# Programs with more frozen numbers than this are not cached on disk: the numbers would be read one by one, and cached too.
MAX_CACHED_CONSTANTS = 2**16

# Operators that are traced as something else, by name: filled by whoever defines such an operator.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


CACHE = "TORCHINDUCTOR_CACHE_DIR"


def replace_unusable_cache() -> TemporaryDirectory[str] | None:
    """A directory for compiled programs in place of one that cannot be made: without any, not even vmap can be imported."""
    asked = os.environ.get(CACHE)
    try:
        if asked:
            os.makedirs(asked, exist_ok=True)
        return None
    except OSError as error:
        found = TemporaryDirectory(prefix="undrift-")
        os.environ[CACHE] = found.name
        log.warning(
            "%s=%s cannot be used (%s): compiled programs are kept for this process alone", CACHE, asked, error.strerror
        )
        return found


_own_cache = replace_unusable_cache()  # for as long as the process lasts


@cache
def untested_torch() -> str | None:
    """Why nothing is compiled under this version of torch, or None."""
    minor = ".".join(torch.__version__.split(".")[:2])
    if minor in TESTED:
        return None
    return (
        f"torch {torch.__version__} has not been tested with the compiler, torch "
        f"{', '.join(TESTED)} have: install one of them for more speed"
    )


def trace(
    function: Callable[..., Any], inputs: Sequence[Tensor], whole: Callable[[Any], bool]
) -> tuple[GraphModule, Any]:
    """The function's graph of elementary operations on tensors that are laid out as these are, and its fake mode.

    `whole` receives the graph in which max pooling is one operation and may rewrite it; if it returns False the function is
    traced once more with pooling taken apart.  Raises if the function depends on the numbers in tensors.
    """
    import torch._inductor.lowering  # noqa: F401 (which decompositions look up)
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    aten = torch.ops.aten
    pooling = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
    # All shapes are known, but without an environment for others TorchInductor does not look for a program on disk.
    shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    # What a model holds besides its parameters, such as frozen layers, is a part of the program.
    settings: dict[str, Any] = {"shape_env": shape_env, "static_shapes": True}
    with FakeTensorMode(allow_non_fake_inputs=True, **settings) as mode:
        # Each on its own: a tensor that is given twice now may be two tensors the next time.
        arguments = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in inputs]
        table = {**select_decomp_table(), **DECOMPOSITIONS}
        with_pooling = {op: way for op, way in table.items() if op not in pooling}
        graph = make_fx(function, decomposition_table=with_pooling)(*arguments)
        if not whole(graph.graph):
            graph = make_fx(function, decomposition_table=table)(*arguments)
    return graph, mode


def fake_mode() -> Any:
    """A mode in which tensors have shapes and types but no numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def eliminate_common_subexpressions(module: GraphModule) -> GraphModule:
    """What is computed twice, such as the samples of two gradients, is computed once."""
    from torch._functorch.compile_utils import fx_graph_cse

    return GraphModule(module, fx_graph_cse(module.graph))


def compile_graph(module: GraphModule, mode: Any, operators: Sequence[Any]) -> Callable[[list[Tensor]], Any]:
    """Machine code for a graph, from TorchInductor, which caches it on disk for later runs.

    `operators` are custom ones that the graph may call, which are called as they are.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.lowering import lowerings, make_fallback
    from torch._inductor.virtualized import V

    for operator in operators:
        # Torch does the same by itself, but raises where the environment has a variable CI, as on build servers.
        if operator not in lowerings:
            make_fallback(operator, warn=False)
    arguments = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    config = inductor_config(
        assert_indirect_indexing=False,  # indices are ours, and right
        size_asserts=False,  # every program is verified when it is made
        realize_reads_threshold=16,  # arithmetic on a few vectors is rather repeated than written down
        fx_graph_cache=constants_in(module) <= MAX_CACHED_CONSTANTS,
    )
    with config, V.set_fake_mode(mode), tracing(TracingContext(mode)), _tolerate_missing_reads():
        program: Any = compile_fx_inner(module, arguments, is_inference=True, cudagraphs=False)  # pyright: ignore[reportArgumentType]
    # The program itself, without the bookkeeping around it, which takes as long as a small step.
    return getattr(program, "current_callable", None) or program


@contextmanager
def _tolerate_missing_reads() -> Iterator[None]:
    """Let TorchInductor leave a vector in memory if something in its loop comes after it without reading it.

    A vector that is used in one loop only is kept out of memory, if all that comes after it reads it number by number.  What
    overwrites an input comes after all that read the input, and does not read what these computed: TorchInductor then asks for
    an index that is not there, and ends with `KeyError: 'buf20'` (https://github.com/pytorch/pytorch/issues/188228).
    """
    from torch._inductor.loop_body import LoopBody

    index_of = LoopBody.get_read_expr  # whose only caller is that check

    def index_or_none(body: Any, buffer: str) -> Any:
        try:
            return index_of(body, buffer)
        except KeyError:
            return None

    with patch.object(LoopBody, "get_read_expr", index_or_none):
        yield


def constants_in(module: GraphModule) -> int:
    """Frozen numbers that a program would be cached with."""
    names = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    constants = [attrgetter(name)(module) for name in names]
    return sum(each.numel() for each in constants if isinstance(each, Tensor))


def inductor_config(**more: Any) -> AbstractContextManager[Any]:
    """TorchInductor's configuration, for as long as the context lasts."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    common: dict[str, Any] = {"compile_threads": 1}  # a pool of compilers would outlive the run
    if config.cpp.vec_isa_ok is None:
        # To try whether the compiler knows the processor's instructions takes a second in every process; if it does not,
        # programs cannot be built, and visits run uncompiled.
        common["cpp.vec_isa_ok"] = True
    # What machine code depends on besides the graph, by which programs on disk are told apart: they may be another machine's.
    with config.patch(common):
        common["cpp.simdlen"] = pick_vec_isa().bit_width() or 1
    common["cpp.threads"] = torch.get_num_threads()
    return config.patch({**common, **more})


def load_cpp(source: str) -> Any:
    """A C++ source file as a shared library, compiled for this processor and cached on disk."""
    from torch._inductor.codecache import CppCodeCache

    with inductor_config(**{"cpp.enable_floating_point_contract_flag": "fast"}):
        return CppCodeCache.load(f"// {processor()}\n{source}")  # it is found by its text


@cache
def processor() -> str:
    """What the processor can do: a library that was compiled on another one may have instructions that it lacks."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(("flags", "Features"))), "unknown")


def force_contiguous(node: Any, strides: list[int]) -> tuple[Any, Any, list[int]]:
    """The operator, and its arguments, by which TorchInductor writes a value down rather than computes it again."""
    from torch._inductor import inductor_prims

    return inductor_prims.force_stride_order, node, strides


def only_vmap_is_active() -> bool:
    """Whether no derivative is being taken and nothing is being traced, so that a layer may be computed our own way."""
    from torch._C._functorch import TransformType, get_interpreter_stack
    from torch.autograd import forward_ad

    transforms = get_interpreter_stack() or []
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and all(each.key() == TransformType.Vmap for each in transforms)
    )
