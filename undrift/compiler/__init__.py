"""Visits compiled whole: `compile_visit(visit, inputs, minibatches, layout)` gives programs, or raises CannotCompile.

The compiler knows pure functions of tensors, their loops and their flat vectors; it knows no method, no problem and no
engine.  visit.py cuts a traced visit into programs, step.py builds the body of a loop, layout.py cuts vectors where
parameters end, verify.py holds a program against the uncompiled code, kernels/ makes it faster, and inductor.py is all that
touches private parts of torch.
"""

from undrift.compiler.inductor import untested_torch
from undrift.compiler.layout import Layout
from undrift.compiler.visit import CannotCompile, CompiledVisit, Tracer, Watch, compile_visit

__all__ = ["CannotCompile", "CompiledVisit", "Layout", "Tracer", "Watch", "compile_visit", "untested_torch"]
