"""What an experiment is made of.  The same words in TOML and in Python; a wrong one is refused by name."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ByteSize, Field, PlainSerializer, PlainValidator, ValidationError, field_validator, model_validator
from torch import nn

from undrift.codecs import make_codec
from undrift.codecs.codec import CODECS
from undrift.core.bounds import LARGEST_SEED
from undrift.core.errors import InvalidInput, known_name, unknown
from undrift.core.hyper import METHODS
from undrift.data.assignment import PARTITIONS
from undrift.data.registry import DATASETS, check_options
from undrift.experiments.config.explain import explain
from undrift.experiments.config.parts import (
    SCHEMES,
    default_model,
    make_method,
    make_participation,
    make_partition,
    model_maker,
    natural_federation,
    register_files,
)
from undrift.experiments.config.section import (
    Count,
    Named,
    Number,
    Section,
    Seed,
    Whole,
    method_section,
    name_in,
    section_of,
)
from undrift.experiments.config.settings import engine_from_dict, engine_to_dict, local_from_dict, local_to_dict
from undrift.experiments.config.virtual import SERVERS, PopulationSection, ServerSection
from undrift.local.settings import Local
from undrift.metrics.registry import METRICS
from undrift.metrics.theory import find_metric
from undrift.models import MODELS
from undrift.privacy import Privacy
from undrift.problems.evaluation import MODEL_METRICS as OF_MODEL
from undrift.simulation.engines import EngineChoice
from undrift.simulation.references import KINDS as REFERENCES
from undrift.simulation.references import VISITS

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,=+()-]*")
MOST_SEEDS, MOST_THREADS, USUAL_PER_ROUND = 10_000, 1024, 10
LOGGERS = ("tensorboard", "wandb", "mlflow")
NAMED_ALONE = ("data", "model", "algorithm", "codec", "engine")  # a name is as good as a section


class DataSection(Named):
    """`name`, one of `undrift list data`, and options of its reader."""

    name: Annotated[str, name_in("data set", DATASETS)] = Field(
        default="digits", description="A data set: undrift list data"
    )

    def make(self) -> None:
        check_options(self.name, self.parameters)  # data are read when a federation is built


class ClientsSection(Named):
    """How the data are spread: a partition with its parameters, and the weights of clients in the objective."""

    partition: Annotated[str, name_in("partition", PARTITIONS)] = Field(
        default="dirichlet", description="Which client holds which sample: undrift list partitions"
    )
    number: Count | None = Field(default=None, description="How many clients")
    weights: Literal["uniform", "samples"] = Field(default="uniform", description="Of clients: uniform or samples")
    seed: Seed | None = Field(default=None, description="Of the partition; the run's own if not given")

    def make(self) -> Any:
        return make_partition(self.partition, self.number, self.parameters)


class ModelSection(Named):
    """`name`, one of `undrift list models`, and its parameters; what the data tell (inputs, classes) need not be given."""

    name: Annotated[str, name_in("model", MODELS)] = Field(description="A model: undrift list models")
    seed: Seed | None = Field(default=None, description="Of the initial weights; the run's own if not given")
    local_parameters: str | list[str] | None = Field(
        default=None, description="Parameters that clients keep to themselves: a layer, a pattern, batch-norm"
    )

    def make(self) -> Callable[[Mapping[str, int]], nn.Module]:
        return model_maker(self.name, self.parameters)


class ParticipationSection(Named):
    """Who takes part: a scheme, how many a round."""

    scheme: Annotated[str, name_in("scheme", SCHEMES)] = Field(
        default="uniform", description="How the clients of a round are drawn: undrift list participation"
    )
    per_round: Count | None = Field(default=None, description="Clients per round, drawn uniformly")

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
    """How often metrics are recorded, and which: of the model (test, train, clients, gradient), of the
    theory (drift, momentum_error, ...), or registered with @ud.metric."""

    every: Count = Field(default=1, description="Rounds from one record of metrics to the next")
    metrics: list[str] = Field(default=["test"], min_length=1, description="Which metrics are recorded")
    test_samples: Count | None = Field(default=None, description="Test samples to evaluate on; all if not given")

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        """Experiments of old have `figures`."""
        if not isinstance(given, dict) or "figures" not in given or "metrics" in given:
            return given
        warnings.warn("[evaluation] figures is now called metrics", DeprecationWarning, stacklevel=2)
        return {("metrics" if key == "figures" else key): value for key, value in given.items()}

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        for name in metrics:
            if name not in OF_MODEL and find_metric(name) is None:
                raise unknown("metric", name, {*OF_MODEL, *METRICS})
        return metrics


class CodecSection(Named):
    """What happens to the vectors that clients send: a codec by `name`, with its parameters."""

    name: str = Field(description="A codec for what clients send: fp16, top-k:0.01,feedback, quantised:4, ...")

    def make(self) -> Any:
        return make_codec(self.name if not self.parameters else {"name": self.name, **self.parameters})


class PrivacySection(Section):
    """Client-level differential privacy, as `ud.Privacy` has it."""

    clip: Number = Field(description="Privacy: the largest norm of what a client sends in a round")
    noise: Number | None = Field(default=None, description="Privacy: the noise multiplier")
    epsilon: Number | None = Field(default=None, description="Privacy: the epsilon of the whole run, in place of noise")
    delta: Number = Field(default=1e-5, description="Privacy: the delta of the guarantee")
    where: str = Field(default="server", description="Privacy: who adds the noise, server or clients")

    @model_validator(mode="after")
    def _sound(self) -> "PrivacySection":
        self.make()
        return self

    def make(self) -> Privacy:
        return Privacy(**self.model_dump())


class AlgorithmSection(Named):
    """A method by `name` with its hyper-parameters; `local` holds what it does otherwise than the others, e.g. its lr."""

    name: Annotated[str, name_in("method", METHODS)] = Field(description="A method: undrift list")
    local: dict[str, Any] = Field(default={}, description="Keys of [local] that are this method's own")

    def make(self) -> Any:
        return make_method(self.name, self.parameters)


def seeds_of(seeds: Any) -> list[int]:
    """Seeds from a number of them, or from themselves.

    >>> seeds_of(3), seeds_of((5, 7))
    ([0, 1, 2], [5, 7])
    """
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        numbers, count = list(seeds), len(seeds)
    else:
        count = seeds if isinstance(seeds, int) and not isinstance(seeds, bool) else 0
        numbers = list(range(min(count, MOST_SEEDS)))
    if count > MOST_SEEDS:
        raise InvalidInput(f"seeds: at most {MOST_SEEDS:,} repetitions, got {count:,}; each is a run of its own")
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= LARGEST_SEED for n in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise InvalidInput(f"seeds are a number of them, or different whole numbers from 0; got {seeds!r}")
    return numbers


OBJECTS: dict[str, Callable[[Any], Any]] = {
    "algorithm": method_section,
    "clients": lambda given: section_of("partition", given, PARTITIONS, N="number"),
    "participation": lambda given: section_of("scheme", given, SCHEMES, S="per_round"),
    "codec": lambda given: section_of("name", given, CODECS),
    "server": lambda given: section_of("kind", given, SERVERS),
}


def _as_section(section: str, given: Any) -> Any:
    """What an object of ud, or a list of methods, is in words; anything else as it is."""
    if section == "algorithms" and isinstance(given, list):
        methods = [method_section(each) for each in given]
        if not all(isinstance(each, dict) for each in methods) or len({each["name"] for each in methods}) < len(given):
            raise InvalidInput(f"algorithms are different methods, or a section with one by each label; got {given!r}")
        return {each["name"]: each for each in methods}
    return OBJECTS.get(section, lambda given: given)(given)


_runners: list[Callable[..., Any]] = []


def run_with(runner: Callable[..., Any]) -> None:
    """What `Experiment.run` calls: a function of a higher layer."""
    _runners[:] = [runner]


class Experiment(Section):
    """One or several methods on one federation, with one or several seeds.

    `algorithm` is one method; `algorithms` several, by label (the label is the method's name unless `name` is given).
    The seed decides the cohorts and minibatches and, unless they have one of their own, the partition and the initial
    weights: all methods meet the same ones.  A section may be an object: participation=ud.Uniform(5), local=ud.Local(...).

    >>> import undrift as ud
    >>> e = ud.Experiment(algorithm={"name": "scaffold-m", "beta": 0.2}, rounds=5, seeds=2)
    >>> e.labels, e.seeds, e.model.name
    (['scaffold-m'], [0, 1], 'mlp')
    """

    name: str | None = Field(default=None, description="Of the run directory in runs/")
    use: list[str] = Field(default=[], description="A Python file that registers methods, data sets or models")
    rounds: Count = Field(default=100, description="Rounds of communication")
    seeds: list[Whole] = Field(default=[0], description="How many repetitions")
    engine: Annotated[str | EngineChoice, PlainValidator(engine_from_dict), PlainSerializer(engine_to_dict)] = Field(
        default="auto",
        description="auto, sequential, batched, compiled, or ray: on this machine, or on the cluster at RAY_ADDRESS",
    )
    threads: Whole | None = Field(default=None, ge=1, le=MOST_THREADS, description="Threads of a run")
    checkpoint_every: Count = Field(default=10, description="Rounds from one checkpoint to the next")
    state_memory: ByteSize | None = Field(default=None, description="Client states beyond this size move to a file")
    target: Number | None = Field(
        default=None,
        allow_inf_nan=False,
        description="A quality whose cost the report tells: 0.9, or 90 for 90 %, of an accuracy",
    )
    baseline: str | None = Field(default=None, description="The method to compare with")
    reference: list[str] = Field(
        default=[], description="Training without a federation, to compare with: centralised,local-only,fine-tuned"
    )
    log: list[str] = Field(default=[], description=", ".join(LOGGERS))
    data: DataSection = DataSection()
    clients: ClientsSection = ClientsSection(partition="dirichlet", number=100, alpha=0.2)  # pyright: ignore[reportCallIssue]
    model: ModelSection = None  # pyright: ignore[reportAssignmentType]  (made from the data's default)
    participation: ParticipationSection = ParticipationSection(per_round=USUAL_PER_ROUND)
    local: Annotated[Local, PlainValidator(local_from_dict), PlainSerializer(local_to_dict)] = local_from_dict({})
    evaluation: EvaluationSection = EvaluationSection()
    codec: CodecSection | None = None
    privacy: PrivacySection | None = None
    population: PopulationSection | None = None  # with one of these two a run is in virtual time
    server: ServerSection | None = None
    algorithm: AlgorithmSection | None = None
    algorithms: dict[str, AlgorithmSection] = Field(
        default={}, description="Several methods, each a section [algorithms.LABEL]"
    )

    def __init__(self, **words: Any) -> None:
        try:
            super().__init__(**words)
        except ValidationError as error:
            raise InvalidInput(explain(error, type(self), words)) from error

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        """Fill in what follows from the rest."""
        if not isinstance(given, dict):
            return given
        given = {section: _as_section(section, value) for section, value in given.items()}
        for section in NAMED_ALONE:
            if isinstance(given.get(section), str):
                given[section] = {"name": given[section]}
        use = given.get("use", [])
        if isinstance(use, list):  # from anywhere: a run directory names them, too
            given["use"] = use = [os.path.abspath(file) if isinstance(file, str) else file for file in use]
            register_files(use)
        data = given.get("data", {})
        if isinstance(data, DataSection):
            data = {"name": data.name}
        name = data.get("name", "digits") if isinstance(data, dict) else ""
        model = given.setdefault("model", {})
        if isinstance(model, dict) and "name" not in model:
            given["model"] = {**default_model(str(name)), **model}
        natural, clients = natural_federation(str(name)), given.get("clients", {})
        if natural and isinstance(clients, dict) and not {"partition", "number"} & {*clients}:
            given["clients"] = clients = {**natural["clients"], **clients}
        if natural and isinstance(clients, dict) and clients.get("partition") == "natural":
            given.setdefault("participation", natural["participation"])
        number = clients.get("number") if isinstance(clients, dict) else None
        if isinstance(number, int) and 0 < number < USUAL_PER_ROUND:
            given.setdefault("participation", {"per_round": int(number)})
        named = given.get("algorithms")
        if isinstance(named, dict):
            given["algorithms"] = {
                label: {"name": label, **words} if isinstance(words, dict) else words
                for label, words in ((label, method_section(method)) for label, method in named.items())
            }
        return given

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> list[int]:
        return seeds_of(seeds)

    @field_validator("reference", mode="before")
    @classmethod
    def _references(cls, given: Any) -> Any:
        """Words with commas, too; in the order in which they are run."""
        words = [given] if isinstance(given, str) else given
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            return given
        names = [name.strip() for word in words for name in word.split(",")]
        chosen = {known_name("reference", {"local": "local-only"}.get(name, name), REFERENCES) for name in names}
        return [kind for kind in REFERENCES if kind in chosen]

    @field_validator("log")
    @classmethod
    def _loggers(cls, log: list[str]) -> list[str]:
        for name in log:
            if name not in LOGGERS:
                raise unknown("logger", name, LOGGERS)
        return log

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        alone = self.algorithm is None and not self.algorithms and len(self.reference) == 1  # the run of a reference
        if not alone and (self.algorithm is None) == (not self.algorithms):
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
            raise InvalidInput(f"participation.per_round = {per_round} is more than there are clients, {number}")
        locals_ = [self.local_of(label) for label in self.labels]
        if number is not None:
            with _in_section("participation"):
                self.participation.make().check(number, self.rounds)
            with _in_section("local"):
                for local in locals_:
                    local.check(number, self.rounds)
        return self

    def __repr__(self) -> str:
        """What is not the default."""
        words = self.model_dump(exclude_defaults=True, exclude={"local"})
        words |= {} if self.local == type(self).model_fields["local"].default else {"local": self.local}
        return f"Experiment({', '.join(f'{key}={value!r}' for key, value in words.items())})"

    __str__ = __repr__

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

    @property
    def is_reference(self) -> bool:
        """Whether this is the run of a reference, and of no method."""
        return not self.methods

    def local_of(self, label: str) -> Local:
        """The local training of a method: the experiment's, with the method's own settings."""
        own = self.methods[label].local
        if not own:
            return self.local
        words = local_to_dict(self.local)
        if "steps" in own or "epochs" in own:  # one replaces the other
            words |= {"steps": None, "epochs": None}
        with _in_section(f"algorithms.{label}.local"):
            return local_from_dict({**words, **own}, f"algorithms.{label}.local")

    def single(self, label: str, seed: int) -> "Experiment":
        """The experiment of one method, or of one reference, and one seed, which says all of itself."""
        if label not in self.methods:
            none = dict.fromkeys(("algorithm", "baseline", "codec", "privacy", "population", "server"))
            own = {"algorithms": {}, "engine": "auto", "reference": [label], "seeds": [seed]}
            return self.model_copy(update=none | own | ({"rounds": VISITS} if label == "fine-tuned" else {}))
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
                "reference": [],
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

    def run(self, out: str | Path | None = None, *, jobs: int = 1, progress: bool | str = "auto") -> Any:
        """Run it as `undrift run` does, and return what `ud.load_run` makes of its directory.

        out        the run directory, runs/NAME by default.  If it holds this very experiment already, what is left of it is
                   done and the rest is read; it is refused if it holds anything else
        jobs       runs at a time, each in a process of its own if more than one
        progress   True: bars, False: none, "auto": on a terminal or in a notebook only
        """
        if not _runners:
            import_module("undrift.public")  # all layers, of which one runs experiments
        return _runners[0](self, out, jobs, progress)

    def runs(self) -> Sequence[tuple[str, int]]:
        """(label, seed) of every run, a seed at a time so that a comparison is complete early; references at the end."""
        labels = [] if self.is_reference else self.labels
        kinds = [kind for kind in REFERENCES if kind in self.reference]
        return [(each, seed) for group in (labels, kinds) for seed in self.seeds for each in group]


def _about(key: str) -> str:
    """What help() tells of a key: its description, or the first line of what its section is made of."""
    field = Experiment.model_fields[key]
    kind, *_ = get_args(field.annotation) or (field.annotation,)
    return field.description or (kind.__doc__ or "").partition("\n")[0]


Experiment.__doc__ = f"{Experiment.__doc__}\n" + "".join(
    f"    {key:<18}{_about(key)}\n" for key in Experiment.model_fields
)
