"""What an experiment is made of.  The same words in TOML and in Python; a wrong one is refused by name."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import ByteSize, Field, field_validator, model_validator

from undrift.codecs.codec import CODECS
from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import build_method
from undrift.data.registry import check_options
from undrift.experiments.config.parts import (
    PARTITIONS,
    SCHEMES,
    clients_of,
    default_model,
    method_of,
    model_maker,
    registered,
    scheme_of,
)
from undrift.experiments.config.section import Named, Number, Section, Whole
from undrift.experiments.config.virtual import PopulationSection, ServerSection
from undrift.local.settings import Geometric, Local
from undrift.metrics.registry import METRICS
from undrift.problems.evaluation import MODEL_METRICS as OF_MODEL
from undrift.simulation.engines import EngineChoice

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,=+()-]*")
LOGGERS = ("tensorboard", "wandb", "mlflow")


class DataSection(Named):
    """`name`, one of `undrift list data`, and options of its reader."""

    name: str = "digits"

    @model_validator(mode="after")
    def _known(self) -> "DataSection":
        check_options(self.name, self.parameters)
        return self


class ClientsSection(Named):
    """How the data are spread: a partition with its parameters, and the weights of clients in the objective."""

    partition: str = "dirichlet"
    number: Whole | None = Field(default=None, ge=1)
    weights: Literal["uniform", "samples"] = "uniform"
    seed: Whole | None = Field(default=None, ge=0)  # of the partition; the run's own if not given

    @model_validator(mode="after")
    def _possible(self) -> "ClientsSection":
        if self.partition not in PARTITIONS:
            raise unknown("partition", self.partition, PARTITIONS)
        clients_of(self.partition, self.number, self.parameters)
        return self


class ModelSection(Named):
    """`name`, one of `undrift list models`, and its parameters; what the data tell (inputs, classes) need not be given."""

    name: str
    seed: Whole | None = Field(
        default=None, ge=0
    )  # of the initial weights; the run's own if not given

    @model_validator(mode="after")
    def _known(self) -> "ModelSection":
        model_maker(self.name, self.parameters)
        return self


class ParticipationSection(Named):
    """Who takes part: a scheme, how many a round."""

    scheme: str = "uniform"
    per_round: Whole | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _possible(self) -> "ParticipationSection":
        if self.scheme not in SCHEMES:
            raise unknown("scheme", self.scheme, SCHEMES)
        self.make()
        return self

    def make(self) -> Any:
        return scheme_of(self.scheme, self.per_round, self.parameters)


class LocalSection(Section):
    """The words of `ud.Local`.  `steps = {geometric = 0.1}` is ud.Geometric(0.1), `steps = {low = 1, high = 5}` is drawn
    by client and visit (epochs likewise), a list has one number a client."""

    steps: Whole | list[Whole] | dict[str, Number] | None = None
    epochs: Whole | dict[str, Whole] | None = None
    batch: Whole | Literal["all"] = 32
    lr: Number | list[Number] = 0.1
    decay: Number = 1.0
    momentum: Number = 0.0
    weight_decay: Number = 0.0
    clip: Number | None = None

    @model_validator(mode="after")
    def _possible(self) -> "LocalSection":
        self.make()
        return self

    def make(self) -> Local:
        words = self.model_dump()
        words["steps"] = _drawn("steps", self.steps)
        words["epochs"] = _drawn("epochs", self.epochs)
        words["batch"] = None if self.batch == "all" else self.batch
        return Local(**words)


def _drawn(name: str, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if set(given) == {"geometric"} and name == "steps":
        return Geometric(given["geometric"])
    if set(given) == {"low", "high"}:
        return int(given["low"]), int(given["high"])
    raise InvalidInput(
        f"{name} is a number, {{low = 1, high = 5}} or (steps only) {{geometric = 0.1}} or a list; got {given}"
    )


@contextmanager
def _of(section: str) -> Iterator[None]:
    """What is wrong is wrong in this section."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"[{section}] {error}") from error


class EngineSection(Section):
    """An engine and its settings, as `ud.engines.Choice` has them: what "auto" came to, so that it is the same again."""

    name: Literal["sequential", "batched", "compiled", "ray"]
    chunk: Whole = Field(default=1, ge=1)
    workers: Whole | None = Field(default=None, ge=1)
    since: Whole = Field(default=1, ge=1)
    shards: Whole | None = Field(default=None, ge=1)
    inside: Literal["sequential", "batched", "compiled"] | None = None

    @model_validator(mode="after")
    def _possible(self) -> "EngineSection":
        self.make()
        return self

    def make(self) -> EngineChoice:
        return EngineChoice(
            self.name, self.chunk, self.workers, self.since, self.shards, self.inside
        )


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

    @model_validator(mode="after")
    def _known(self) -> "CodecSection":
        self.make()
        return self

    def make(self) -> Any:
        if self.name not in CODECS:
            raise unknown("codec", self.name, CODECS)
        return build_method(self.name, CODECS[self.name], self.parameters)


class AlgorithmSection(Named):
    """A method by `name` with its hyper-parameters; `local` holds what it does otherwise than the others, e.g. its lr."""

    name: str
    local: dict[str, Any] = {}

    @model_validator(mode="after")
    def _possible(self) -> "AlgorithmSection":
        self.make()
        return self

    def make(self) -> Any:
        return method_of(self.name, self.parameters)


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
    use: list[str] = []  # Python files that register methods, data sets or models of one's own
    rounds: Whole = Field(default=100, ge=1)
    seeds: list[Whole] = [0]
    engine: Literal["auto", "sequential", "batched", "compiled", "ray"] | EngineSection = "auto"
    threads: Whole | None = Field(default=None, ge=1)
    checkpoint_every: Whole = Field(default=10, ge=1)
    state_memory: ByteSize | None = None
    target: Number | None = Field(default=None, allow_inf_nan=False)  # the report tells its price
    baseline: str | None = None  # the label that others are compared with
    log: list[str] = []
    data: DataSection = DataSection()
    clients: ClientsSection = ClientsSection(partition="dirichlet", number=100, alpha=0.2)  # pyright: ignore[reportCallIssue]
    model: ModelSection = None  # pyright: ignore[reportAssignmentType]  (made from the data's default)
    participation: ParticipationSection = ParticipationSection(per_round=10)
    local: LocalSection = LocalSection()
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
        for section in ("data", "model", "algorithm", "codec"):  # a name alone will do
            if isinstance(given.get(section), str):
                given[section] = {"name": given[section]}
        use = given.get("use", [])
        registered(use if isinstance(use, list) else [])
        data = given.get("data", {})
        name = data.get("name", "digits") if isinstance(data, dict) else getattr(data, "name", "")
        given.setdefault("model", default_model(str(name)))
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
        if self.population and self.clients.number is not None:
            with _of("population"):
                self.population.make().check(self.clients.number)
        if self.server and self.clients.number is not None:
            with _of("server"):
                self.server.make().check(self.clients.number)
        per_round, number = self.participation.per_round, self.clients.number
        if per_round is not None and number is not None and per_round > number:
            raise InvalidInput(
                f"participation.per_round = {per_round} is more than there are clients, {number}"
            )
        participation = self.participation.make()
        for label in self.labels:
            local = self.local_of(label)
            if self.clients.number is not None:
                with _of("participation"):
                    participation.check(self.clients.number, self.rounds)
                with _of("local"):
                    local.check(self.clients.number, self.rounds)
        return self

    @property
    def engine_choice(self) -> str | EngineChoice:
        """The engine, as `ud.rounds` takes it."""
        return self.engine if isinstance(self.engine, str) else self.engine.make()

    @property
    def codec_choice(self) -> Any:
        """The codec, as `ud.rounds` takes it."""
        return None if self.codec is None else self.codec.make()

    @property
    def on_ray(self) -> bool:
        """Whether runs are on a cluster."""
        name = self.engine if isinstance(self.engine, str) else self.engine.name
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
        """The local work under a method: the experiment's, and what the method does otherwise."""
        return self.local_section(label).make()

    def local_section(self, label: str) -> LocalSection:
        own = self.methods[label].local
        for word in own:
            if word not in LocalSection.model_fields:
                raise unknown(
                    f"key of [algorithms.{label}.local]:", word, LocalSection.model_fields
                )
        words = self.local.model_dump()
        if "steps" in own or "epochs" in own:  # one replaces the other
            words |= {"steps": None, "epochs": None}
        return LocalSection(**{**words, **own})

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
                "local": self.local_section(label),
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
