"""One passage of the package changed: methods of a file, or the functions of any module."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

import undrift.algorithms
from undrift.core.hyper import METHODS

FOLDER = Path(undrift.algorithms.__file__).parent


@contextmanager
def mutated(file: str, right: str, wrong: str) -> Iterator[list[str]]:
    """Within the block `ud.method` gives the mutants; yields their names.  The passage must stand there once."""
    source = (FOLDER / file).read_text()
    assert source.count(right) == 1, f"{file} must contain this once: {right!r}"
    module = ModuleType(f"mutant_of_{file.removesuffix('.py')}")
    saved = dict(METHODS)
    sys.modules[module.__name__] = module
    try:
        METHODS.clear()
        exec(compile(source.replace(right, wrong), file, "exec"), module.__dict__)
        mutants = list(METHODS)
        METHODS.update({name: entry for name, entry in saved.items() if name not in mutants})
        yield mutants
    finally:
        METHODS.clear()
        METHODS.update(saved)
        del sys.modules[module.__name__]


def mistaken(module: ModuleType, right: str, wrong: str, patch: pytest.MonkeyPatch) -> None:
    """Change a passage of a module, which must stand there once: functions and methods keep who they are, not what they do."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, f"{module.__name__} must contain this once: {right!r}"
    before, after = (dict(_functions(compile(text, "", "exec"))) for text in (source, source.replace(right, wrong)))
    changed = [name for name, code in after.items() if code != before.get(name)]
    assert changed, "the passage is in no function"
    for name in changed:
        function = attrgetter(name)(module)
        if isinstance(function, FunctionType):
            patch.setattr(function, "__code__", after[name])


def assert_noticed(
    notices: Callable[[], object], module: ModuleType, right: str, wrong: str, patch: pytest.MonkeyPatch
) -> None:
    """A check passes as the module is, and fails with the mistake."""
    notices()
    mistaken(module, right, wrong, patch)
    with pytest.raises(AssertionError):
        notices()


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions of a module and methods of its classes, not those within functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and "<" not in inner.co_qualname:
            yield from _functions(inner) if not inner.co_flags & CO_OPTIMIZED else [(inner.co_qualname, inner)]
