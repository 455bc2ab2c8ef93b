"""Undrift: federated optimisation on heterogeneous clients.

The public names are in public.py, which is loaded when the first of them is asked for: torch takes a second to load, and
a command should say something before that.
"""

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from undrift.version import __version__ as __version__

if TYPE_CHECKING:
    from undrift.public import *  # noqa: F403
    from undrift.public import __all__ as __all__

# OpenMP's threads wait for work in a loop of some milliseconds, which starves whoever has work where cores are shared:
# they sleep after some microseconds.  OpenMP reads it when torch is loaded.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

OLD = {"Flight": "AsyncSnapshot"}  # names until 0.2


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":  # asked by Python itself
        raise AttributeError(f"module 'undrift' has no attribute {name!r}")
    if find_spec(f"undrift.{name}"):
        return import_module(f"undrift.{name}")
    public = vars(import_module("undrift.public"))
    if name in OLD:
        warnings.warn(f"ud.{name} is now ud.{OLD[name]}", DeprecationWarning, stacklevel=2)
        name = OLD[name]
    globals().update({each: public[each] for each in public["__all__"]})
    globals()["__all__"] = public["__all__"]
    if name not in globals():  # with name and obj Python tells the nearest one
        raise AttributeError(f"module 'undrift' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
