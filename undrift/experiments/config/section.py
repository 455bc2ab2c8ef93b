"""What sections of an experiment have in common."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from undrift.core.bounds import LARGEST_SEED
from undrift.core.errors import InvalidInput, known_name, unknown
from undrift.core.hyper import METHODS, spec_of

T = TypeVar("T")

Whole: TypeAlias = Annotated[int, Field(strict=True)]
MOST = 10**9  # rounds, clients and whatever else is counted
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Seed: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=LARGEST_SEED)]
Number: TypeAlias = Whole | Annotated[float, Field(strict=True)]


def name_in(kind: str, known: Iterable[str]) -> AfterValidator:
    """A key that holds one of some names, in any spelling; those that are registered later count."""
    return AfterValidator(lambda name: known_name(kind, name, known))


class Section(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(Section):
    """A section whose other keys are the parameters of what it names, which is made once to see that it can be."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.make()
        return self

    def make(self) -> Any:
        raise NotImplementedError

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def from_section(
    cls: Callable[..., T],
    given: Any,
    section: str,
    convert: Mapping[str, Callable[[Any], Any]] | None = None,
    prefix: str = "",
    **renamed: str,
) -> T:
    """A dataclass from the keys of a section, so that its fields are the only definition of them.

    `convert` makes Python values of some; `renamed` says which fields have another key.  Errors begin without `prefix`.

    >>> from undrift.simulation.engines import EngineChoice
    >>> from_section(EngineChoice, {"name": "batched", "chnk": 2}, "engine", engine="name")
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: unknown key of [engine]: 'chnk'; did you mean 'chunk'? Known: ...
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{section} is a section of keys and values, got {given!r}")
    keys = {renamed.get(f.name, f.name): f.name for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    for key in given:
        if key not in keys:
            raise unknown(f"key of [{section}]:", key, keys)
    values = {keys[key]: (convert or {}).get(key, lambda value: value)(value) for key, value in given.items()}
    try:
        return cls(**values)
    except InvalidInput as error:
        raise InvalidInput(str(error).removeprefix(prefix)) from error


def section_of(key: str, value: Any, known: Mapping[str, Any], **renamed: str) -> Any:
    """An object such as ud.Uniform(10) as its section, named under `key`; anything else as it is.

    >>> from undrift.simulation.participation import Uniform
    >>> section_of("scheme", Uniform(10), {"uniform": Uniform}, S="per_round")
    {'scheme': 'uniform', 'per_round': 10}
    """
    name = next((name for name, kind in known.items() if kind is type(value)), None)
    return value if name is None else {key: name, **_given(value, renamed)}


def method_section(value: Any) -> Any:
    """The same of a method, or of its name."""
    if isinstance(value, str):
        return {"name": value}
    if not is_dataclass(value) or spec_of(value).name not in METHODS:
        return value
    own = {name: method_section(each) if is_dataclass(each) else each for name, each in _given(value, {}).items()}
    return {"name": spec_of(value).name, **own}


def _given(value: Any, renamed: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an object that are not their defaults."""
    known = {f.name: vars(value)[f.name] for f in fields(value) if vars(value)[f.name] != f.default}
    return {renamed.get(k, k): list(each) if isinstance(each, tuple) else each for k, each in known.items()}
