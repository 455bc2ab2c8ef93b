"""The methods of one file with one passage changed, in place of the right ones."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

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
