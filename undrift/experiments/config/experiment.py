"""What an experiment is made of.  The same words in TOML and in Python; a wrong one is refused by name."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import (
    ByteSize,
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)
from torch import nn

from undrift.codecs.codec import CODECS
from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import build_method
from undrift.data.registry import check_options
from undrift.experiments.config.parts import (
    default_model,
    make_method,
    make_participation,
    make_partition,
    model_maker,
    register_files,
)
from undrift.experiments.config.section import Named, Number, Section, Whole
from undrift.experiments.config.settings import (
    engine_from_dict,
    engine_to_dict,
    local_from_dict,
    local_to_dict,
)
from undrift.experiments.config.virtual import PopulationSection, ServerSection
from undrift.local.settings import Local
from undrift.metrics.registry import METRICS
from undrift.problems.evaluation import MODEL_METRICS as OF_MODEL
from undrift.simulation.engines import EngineChoice

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,=+()-]*")
LOGGERS = ("tensorboard", "wandb", "mlflow")
NAMED_ALONE = ("data", "model", "algorithm", "codec", "engine")  # a name is as good as a section


class DataSection(Named):
    """`name`, one of `undrift list data`, and options of its reader."""

    name: str = Field(default="digits", description="A data set: undrift list data")

    def make(self) -> None:
        check_options(self.name, self.parameters)  # data are read when a federation is built


class ClientsSection(Named):
    """How the data are spread: a partition with its parameters, and the weights of clients in the objective."""

    partition: str = "dirichlet"
    number: Whole | None = Field(default=None, ge=1, description="How many clients")
    weights: Literal["uniform", "samples"] = Field(
        default="uniform", description="Of clients: uniform or samples"
    )
    seed: Whole | None = Field(default=None, ge=0)  # of the partition; the run's own if not given

    def make(self) -> Any:
        return make_partition(self.partition, self.number, self.parameters)


class ModelSection(Named):
    """`name`, one of `undrift list models`, and its parameters; what the data tell (inputs, classes) need not be given."""

    name: str = Field(description="A model: undrift list models")
    seed: Whole | None = Field(default=None, ge=0)  # of the initial weights; the run's if not given

    def make(self) -> Callable[[Mapping[str, int]], nn.Module]:
        return model_maker(self.name, self.parameters)


class ParticipationSection(Named):
    """Who takes part: a scheme, how many a round."""

    scheme: str = "uniform"
    per_round: Whole | None = Field(
        default=None, ge=1, description="Clients per round, drawn uniformly"
    )

    def make(self) -> Any:
        return make_participation(self.scheme, self.per_round, self.parameters)


@contextmanager
def _in_section(section: str) -> Iterator[None]:
    """Errors name this section."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"[{section}] {error}") from error


class EvaluationSection(Section):
    """How often metrics are recorded, and which: of the model (test, train, clients, gradient), or registered with @ud.metric."""

    every: Whole = Field(default=1, ge=1)
    metrics: list[str] = Field(default=["test"], min_length=1)
    test_samples: Whole | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        """Experiments of old have `figures`."""
        if not isinstance(given, dict) or "figures" not in given or "metrics" in given:
            return given
        warnings.warn(
            "[evaluation] figures is now called metrics", DeprecationWarning, stacklevel=2
        )
        return {("metrics" if key == "figures" else key): value for key, value in given.items()}

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        for name in metrics:
            if name not in (*OF_MODEL, *METRICS):
                raise unknown("metric", name, [*OF_MODEL, *METRICS])
        return metrics


class CodecSection(Named):
    """What happens to the vectors that clients send: a codec by `name`, with its parameters."""

    name: str

    def make(self) -> Any:
        if self.name not in CODECS:
            raise unknown("codec", self.name, CODECS)
        return build_method(self.name, CODECS[self.name], self.parameters)


class AlgorithmSection(Named):
    """A method by `name` with its hyper-parameters; `local` holds what it does otherwise than the others, e.g. its lr."""

    name: str
    local: dict[str, Any] = {}

    def make(self) -> Any:
        return make_method(self.name, self.parameters)


class Experiment(Section):
    """One or several methods on one federation, with one or several seeds.

    `algorithm` is one method; `algorithms` several, by label (the label is the method's name unless `name` is given).
    The seed decides the cohorts and minibatches and, unless they have one of their own, the partition and the initial
    weights: all methods meet the same ones.

    >>> import undrift as ud
    >>> e = ud.Experiment(algorithm={"name": "scaffold-m", "beta": 0.2}, rounds=5, seeds=2)
    >>> e.labels, e.seeds, e.model.name
    (['scaffold-m'], [0, 1], 'mlp')
    """

    name: str | None = None
    use: list[str] = Field(
        default=[], description="A Python file that registers methods, data sets or models"
    )
    rounds: Whole = Field(default=100, ge=1, description="Rounds of communication")
    seeds: list[Whole] = Field(default=[0], description="How many repetitions")
    engine: Annotated[
        str | EngineChoice, PlainValidator(engine_from_dict), PlainSerializer(engine_to_dict)
    ] = Field(
        default="auto",
        description="auto, sequential, batched, compiled, or ray: on this machine, or on the cluster at RAY_ADDRESS",
    )
    threads: Whole | None = Field(default=None, ge=1)
    checkpoint_every: Whole = Field(default=10, ge=1)
    state_memory: ByteSize | None = None
    target: Number | None = Field(
        default=None, allow_inf_nan=False, description="A quality whose cost the report tells"
    )
    baseline: str | None = Field(default=None, description="The method to compare with")
    log: list[str] = Field(default=[], description=", ".join(LOGGERS))
    data: DataSection = DataSection()
    clients: ClientsSection = ClientsSection(partition="dirichlet", number=100, alpha=0.2)  # pyright: ignore[reportCallIssue]
    model: ModelSection = None  # pyright: ignore[reportAssignmentType]  (made from the data's default)
    participation: ParticipationSection = ParticipationSection(per_round=10)
    local: Annotated[Local, PlainValidator(local_from_dict), PlainSerializer(local_to_dict)] = (
        local_from_dict({})
    )
    evaluation: EvaluationSection = EvaluationSection()
    codec: CodecSection | None = None
    population: PopulationSection | None = None  # with one of these two a run is in virtual time
    server: ServerSection | None = None
    algorithm: AlgorithmSection | None = None
    algorithms: dict[str, AlgorithmSection] = {}

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        """Fill in what follows from the rest."""
        if not isinstance(given, dict):
            return given
        given = dict(given)
        for section in NAMED_ALONE:
            if isinstance(given.get(section), str):
                given[section] = {"name": given[section]}
        use = given.get("use", [])
        register_files(use if isinstance(use, list) else [])
        data = given.get("data", {})
        if isinstance(data, DataSection):
            data = {"name": data.name}
        name = data.get("name", "digits") if isinstance(data, dict) else ""
        model = given.setdefault("model", {})
        if isinstance(model, dict) and "name" not in model:
            given["model"] = {**default_model(str(name)), **model}
        named = given.get("algorithms")
        if isinstance(named, dict):
            given["algorithms"] = {
                label: {"name": label, **words} if isinstance(words, dict) else words
                for label, words in named.items()
            }
        return given

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        return (
            list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
        )

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**63:
            raise InvalidInput(
                f"seeds are a number of them, or different whole numbers from 0; got {seeds}"
            )
        return seeds

    @field_validator("log")
    @classmethod
    def _loggers(cls, log: list[str]) -> list[str]:
        for name in log:
            if name not in LOGGERS:
                raise unknown("logger", name, LOGGERS)
        return log

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if (self.algorithm is None) == (not self.algorithms):
            raise InvalidInput(
                "give one method in [algorithm], or several in [algorithms.LABEL], not both and not none"
            )
        for label in [*self.labels, *([self.name] if self.name is not None else [])]:
            if not LABEL.fullmatch(label):
                raise InvalidInput(
                    f"a label or name becomes a folder: letters, digits, spaces and _.,=+()- are allowed, got {label!r}"
                )
        if self.baseline is not None and self.baseline not in self.labels:
            raise unknown("baseline", self.baseline, self.labels)
        if self.timed and self.on_ray:
            raise InvalidInput(
                "[engine] a run with [population] or [server] is in virtual time, in one process: leave out ray"
            )
        per_round, number = self.participation.per_round, self.clients.number
        for section in ("population", "server"):
            made = vars(self)[section]
            if made is not None and number is not None:
                with _in_section(section):
                    made.make().check(number)
        if per_round is not None and number is not None and per_round > number:
            raise InvalidInput(
                f"participation.per_round = {per_round} is more than there are clients, {number}"
            )
        locals_ = [self.local_of(label) for label in self.labels]
        if number is not None:
            with _in_section("participation"):
                self.participation.make().check(number, self.rounds)
            with _in_section("local"):
                for local in locals_:
                    local.check(number, self.rounds)
        return self

    @property
    def codec_choice(self) -> Any:
        """The codec, as `ud.rounds` takes it."""
        return None if self.codec is None else self.codec.make()

    @property
    def on_ray(self) -> bool:
        """Whether runs are on a cluster."""
        name = self.engine if isinstance(self.engine, str) else self.engine.engine
        return name == "ray"

    @property
    def timed(self) -> bool:
        """Whether runs are in virtual time."""
        return self.population is not None or self.server is not None

    @property
    def methods(self) -> dict[str, AlgorithmSection]:
        """Every method by its label."""
        return {self.algorithm.name: self.algorithm} if self.algorithm else self.algorithms

    @property
    def labels(self) -> list[str]:
        return list(self.methods)

    def local_of(self, label: str) -> Local:
        """The local training of a method: the experiment's, with the method's own settings."""
        own = self.methods[label].local
        if not own:
            return self.local
        words = local_to_dict(self.local)
        if "steps" in own or "epochs" in own:  # one replaces the other
            words |= {"steps": None, "epochs": None}
        return local_from_dict({**words, **own}, f"algorithms.{label}.local")

    def single(self, label: str, seed: int) -> "Experiment":
        """The experiment of one method and one seed, which says all of itself."""
        method = self.methods[label]
        alone = method.model_copy(update={"local": {}})
        as_one = label == method.name  # else its label must be kept
        return self.model_copy(
            update={
                "algorithm": alone if as_one else None,
                "algorithms": {} if as_one else {label: alone},
                "seeds": [seed],
                "local": self.local_of(label),
                "baseline": None,
            }
        )

    def only(self, labels: Sequence[str]) -> "Experiment":
        """The same experiment with some of its methods."""
        for label in labels:
            if label not in self.labels:
                raise unknown("method of the experiment:", label, self.labels)
        kept = {label: method for label, method in self.methods.items() if label in labels}
        baseline = self.baseline if self.baseline in labels else None
        update = {"algorithm": None, "algorithms": kept, "baseline": baseline}
        return self.model_copy(update=update)

    def runs(self) -> Sequence[tuple[str, int]]:
        """(label, seed) of every run, a seed at a time so that a comparison is complete early."""
        return [(label, seed) for seed in self.seeds for label in self.labels]
