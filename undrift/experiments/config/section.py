"""What sections of an experiment have in common."""

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Whole: TypeAlias = Annotated[int, Field(strict=True)]
Number: TypeAlias = Whole | Annotated[float, Field(strict=True)]


class Section(BaseModel):
    """Frozen, and no word is let in that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(Section):
    """A section whose other words are the parameters of what it names."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})
