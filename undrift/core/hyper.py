"""Methods by name, and hyper-parameters that know what they may be."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from numbers import Integral, Real
from typing import Any, TypeVar, dataclass_transform, overload

from undrift.core.errors import InvalidInput, check_name, known_name, named, unknown

AlgorithmT = TypeVar("AlgorithmT")


@dataclass(frozen=True)
class Spec:
    """What is known about a method besides its rule."""

    name: str
    paper: str
    everyone: bool = False  # defined for full participation only
    equal_steps: bool = False  # defined only if all clients make the same number of steps
    local_momentum: bool = False  # clients may take any optimiser, ud.Local(optimiser=...): momentum, Adam, ...
    linear_optimiser: bool = False  # clients' optimiser must be linear in the gradients: momentum, not Adam
    control_variates: bool = False  # clients' optimiser must step in proportion to the gradient: momentum, not Adam
    adds_states: bool = False  # its server keeps the weighted sum of all clients' states
    divides_by_lr: bool = False  # not defined for a local step size of zero
    local_models: bool = True  # its clients move local models, which start from the server's
    normalises: bool = False  # what clients send is divided by their numbers of steps: they count by weight alone
    reading: bool = False  # no authoritative text at hand: the rule is our reading of it


@dataclass(frozen=True)
class Entry:
    """A method as the command line knows it: its spec and what makes the object."""

    spec: Spec
    make: Callable[..., Any]


def spec_of(algorithm: Any) -> Spec:
    """What is known of a method; of one without @ud.algorithm only its name.

    >>> class Mine: ...
    >>> spec_of(Mine()).name
    'Mine'
    """
    known = getattr(algorithm, "spec", None)
    return known if isinstance(known, Spec) else Spec(type(algorithm).__name__, "", local_momentum=True)


METHODS: dict[str, Entry] = {}


def hyper(*, default: Any = ..., within: str = "", among: tuple[Any, ...] = ()) -> Any:
    """A hyper-parameter that must lie in an interval, such as "(0, 1]", or be one of a few values.

    None is allowed where it is the default.
    """
    about = {"within": within, "among": among}
    return field(metadata=about) if default is ... else field(default=default, metadata=about)


@overload
@dataclass_transform(frozen_default=True, kw_only_default=False, field_specifiers=(hyper, field))
def algorithm(name: type[AlgorithmT]) -> type[AlgorithmT]: ...
@overload
@dataclass_transform(frozen_default=True, kw_only_default=False, field_specifiers=(hyper, field))
def algorithm(
    name: str | None = None, paper: str = "", **spec: bool
) -> Callable[[type[AlgorithmT]], type[AlgorithmT]]: ...
def algorithm(name: Any = None, paper: str = "", **spec: bool) -> Any:
    """Make a class a method: a frozen dataclass of checked hyper-parameters, known by its name.

    Without a name, `@algorithm`, it is called as the class: HalfSteps is "half-steps".  `spec` is what is known of the
    method besides its rule: `Spec` lists it.

    >>> @algorithm("half-fedavg", "an example")
    ... class HalfFedAvg:
    ...     server_lr: float = hyper(default=0.5, within="[0, 1]")
    >>> HalfFedAvg(server_lr=2.0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: half-fedavg: server_lr must lie in [0, 1], got 2.0
    >>> METHODS.pop("half-fedavg").spec.paper
    'an example'
    """

    for word in spec:
        if word not in Spec.__dataclass_fields__:
            raise unknown(
                "word about a method", word, [f.name for f in fields(Spec) if f.name not in ("name", "paper")]
            )

    def make(name: str, cls: type[AlgorithmT]) -> type[AlgorithmT]:
        if not isinstance(cls, type):
            raise InvalidInput(f"method {name!r} must be a class with server, client, send, local and update")
        own = getattr(cls, "__post_init__", None)

        def check(self: Any) -> None:
            check_fields(self, name)
            if own is not None:
                own(self)

        known = METHODS.get(name)
        check_name("method", name, known and known.make, cls)
        cls.__post_init__ = check  # pyright: ignore[reportAttributeAccessIssue]
        cls.spec = Spec(name, paper, **spec)  # pyright: ignore[reportAttributeAccessIssue]
        made = dataclass(frozen=True)(cls)
        METHODS[name] = Entry(made.spec, made)  # pyright: ignore[reportAttributeAccessIssue]
        return made

    return named("method", name, make)


def special_case(name: str, paper: str, of: Any) -> Callable[[AlgorithmT], AlgorithmT]:
    """Register a function that returns a method with certain hyper-parameters, under a name of its own."""

    def make(function: AlgorithmT) -> AlgorithmT:
        known = METHODS.get(name)
        check_name("method", name, known and known.make, function)
        spec = replace(of.spec, name=name, paper=paper)
        METHODS[name] = Entry(spec, function)  # pyright: ignore[reportArgumentType]
        return function

    return make


def check_value(
    method: str, name: str, value: Any, type_: Any, default: Any = ..., within: str = "", among: tuple[Any, ...] = ()
) -> None:
    """Raise InvalidInput unless a hyper-parameter is what it may be.

    >>> check_value("fedavg-m", "beta", 0.1, float, within="(0, 1]")
    >>> check_value("fedavg-m", "beta", 0, float, within="(0, 1]")
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: fedavg-m: beta must lie in (0, 1], got 0
    """
    if value is None and default is None:
        return
    if among and value in among:
        return
    if among and not within:
        choices = ", ".join(map(repr, among))
        raise InvalidInput(f"{method}: {name} must be one of {choices}, got {value!r}")
    if within:
        whole = type_ in (int, int | None, int | str)
        if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
            kind = "whole number" if whole else "number"
            words = "".join(f" or {choice!r}" for choice in among)
            raise InvalidInput(f"{method}: {name} must be a {kind} in {within}{words}, got {value!r}")
        if not inside(float(value), within):
            raise InvalidInput(f"{method}: {name} must lie in {within}, got {value}")


def check_fields(self: Any, name: str = "") -> None:
    """Check all fields of a dataclass that `hyper` gives a range: `__post_init__ = check_fields` where that is all.

    >>> @dataclass
    ... class Noise:
    ...     sigma: float = hyper(default=1.0, within="[0, inf)")
    ...     __post_init__ = check_fields
    >>> Noise(-1.0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Noise: sigma must lie in [0, inf), got -1.0
    """
    for f in fields(self):
        check_value(name or type(self).__name__, f.name, vars(self)[f.name], f.type, f.default, **f.metadata)


def inside(value: float, interval: str) -> bool:
    """Whether a number lies in an interval written as in mathematics.

    >>> inside(1, "(0, 1]"), inside(0, "(0, 1]"), inside(float("nan"), "[0, inf)")
    (True, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value > low or (interval[0] == "[" and value == low)
    below = value < high or (interval[-1] == "]" and value == high)
    return math.isfinite(value) and above and below


def build_method(what: str, make: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Call something with parameters that came from a file or a command line, named if they do not fit.

    >>> build_method("fraction", lambda over, under=1: over / under, {"over": 1, "below": 2})
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: unknown parameter of fraction: 'below'. Known: over, under
    """
    allowed = signature(make).parameters
    for key in parameters:
        if key not in allowed:
            if not allowed:
                raise InvalidInput(f"{what} has no parameters, got {key!r}: leave it out")
            raise unknown(f"parameter of {what}:", key, allowed)
    missing = [key for key, p in allowed.items() if p.default is p.empty and key not in parameters]
    if missing:
        raise InvalidInput(f"{what} needs {', '.join(missing)}: give a value for each")
    return make(**parameters)


def build_named(kind: str, known: Mapping[str, Callable[..., Any]], given: str | Mapping[str, Any]) -> Any:
    """Something by name, with parameters after a colon ("top-k:0.01,feedback") or as a section (name = "top-k", k = 0.01).

    The first parameter needs no name, and a word by itself after it is a switch that is on.

    >>> build_named("fraction", {"over": lambda top, under=1, negated=False: (top, under, negated)}, "over:3,negated")
    (3, 1, True)
    """
    if isinstance(given, str):
        name, _, rest = given.partition(":")
        words = [word.strip() for word in rest.split(",")] if rest else []
    else:
        name, words = str(given.get("name")), []
    name = known_name(kind, name, known)
    make, parameters = known[name], {} if isinstance(given, str) else {k: v for k, v in given.items() if k != "name"}
    names = list(signature(make).parameters)
    for number, word in enumerate(words):
        key, sign, text = word.partition("=")
        if not sign and number == 0 and names and key not in names:
            key, text = names[0], word
        parameters[key] = _value(text) if text else True
    needed = [key for key, p in signature(make).parameters.items() if p.default is p.empty]
    if needed and not parameters:
        raise InvalidInput(f'{name} needs {" and ".join(needed)}: write "{name}:{",".join(map(str.upper, needed))}"')
    return build_method(name, make, parameters)


def _value(text: str) -> Any:
    """A number, true or false; anything else is a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def method(name: str, **hyper_parameters: Any) -> Any:
    """The method of that name, as `ud.ScaffoldM(beta=0.2)` would give it.

    >>> import undrift as ud
    >>> ud.method("scaffold-m", beta=0.2)
    ScaffoldM(beta=0.2, gamma=None, B=0, reparametrised=False, server_lr=1.0)
    """
    name = known_name("method", name, METHODS)
    return build_method(name, METHODS[name].make, hyper_parameters)
