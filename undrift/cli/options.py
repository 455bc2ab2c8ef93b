"""Options of commands that describe an experiment in words, and the experiment they describe."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import METHODS
from undrift.experiments.config import Experiment, with_settings
from undrift.experiments.config.parts import registered
from undrift.experiments.config.toml import as_words, described, value_of

FEDERATION, WORK, RECORD = "Federation", "Work", "Recording"

# The types of options, with their help: `Data | None` in a command is an option that may be left out.
Data = Annotated[
    str | None, Option("--data", help="A data set: undrift list data", rich_help_panel=FEDERATION)
]
Clients = Annotated[int | None, Option("--clients", help="How many", rich_help_panel=FEDERATION)]
Dirichlet = Annotated[
    float | None,
    Option(
        "--dirichlet",
        metavar="ALPHA",
        help="Label mixtures drawn from Dirichlet(ALPHA); 0: one class a client",
        rich_help_panel=FEDERATION,
    ),
]
Iid = Annotated[bool, Option("--iid", help="Clients alike", rich_help_panel=FEDERATION)]
Shards = Annotated[
    int | None,
    Option(
        "--shards",
        metavar="EACH",
        help="EACH label-sorted shards a client",
        rich_help_panel=FEDERATION,
    ),
]
Natural = Annotated[
    bool, Option("--natural", help="The clients that the data name", rich_help_panel=FEDERATION)
]
Weights = Annotated[
    str | None,
    Option("--weights", help="Of clients: uniform or samples", rich_help_panel=FEDERATION),
]
ModelName = Annotated[
    str | None, Option("--model", help="A model: undrift list models", rich_help_panel=FEDERATION)
]
PerRound = Annotated[
    int | None, Option("--per-round", help="Clients a round, drawn uniformly", rich_help_panel=WORK)
]
Async = Annotated[
    bool,
    Option(
        "--async",
        help="Virtual time: clients of different pace, and a server that steps when PER-ROUND updates have come; "
        "twice as many are kept at work.  More with --set population.... and server....",
        rich_help_panel=WORK,
    ),
]
Everyone = Annotated[
    bool, Option("--everyone", help="All clients every round", rich_help_panel=WORK)
]
Rounds = Annotated[
    int | None, Option("--rounds", help="Rounds of communication", rich_help_panel=WORK)
]
Seeds = Annotated[int | None, Option("--seeds", help="How many repetitions", rich_help_panel=WORK)]
Steps = Annotated[int | None, Option("--steps", help="Local steps a visit", rich_help_panel=WORK)]
Epochs = Annotated[
    int | None, Option("--epochs", help="Local epochs a visit", rich_help_panel=WORK)
]
Batch = Annotated[
    int | None, Option("--batch", help="Samples in a minibatch", rich_help_panel=WORK)
]
Lr = Annotated[float | None, Option("--lr", help="Local step size", rich_help_panel=WORK)]
Engine = Annotated[
    str | None,
    Option(
        "--engine",
        help="auto, sequential, batched, compiled, or ray: on this machine, or on the cluster at RAY_ADDRESS",
        rich_help_panel=WORK,
    ),
]
Workers = Annotated[
    int | None,
    Option("--workers", help="Clients side by side, on so many cores", rich_help_panel=WORK),
]
Target = Annotated[
    float | None,
    Option("--target", help="A quality whose price the report tells", rich_help_panel=RECORD),
]
Baseline = Annotated[
    str | None, Option("--baseline", help="The method to compare with", rich_help_panel=RECORD)
]
Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set anything of the experiment, e.g. --set local.clip=1",
        rich_help_panel=RECORD,
    ),
]
Use = Annotated[
    list[Path] | None,
    Option(
        "--use", help="A Python file that registers methods, data or models", rich_help_panel=RECORD
    ),
]
Log = Annotated[
    list[str] | None, Option("--log", help="tensorboard, wandb or mlflow", rich_help_panel=RECORD)
]
Out = Annotated[Path | None, Option("--out", help="The directory to make", rich_help_panel=RECORD)]
Jobs = Annotated[
    int | None,
    Option(
        "--jobs", min=1, help="Runs at a time, as many as cores by default", rich_help_panel=RECORD
    ),
]
Dry = Annotated[
    bool,
    Option(
        "--dry",
        help="Show the experiment, its bytes and time; start nothing",
        rich_help_panel=RECORD,
    ),
]
Quiet = Annotated[
    bool, Option("-q", "--quiet", help="Say nothing but errors", rich_help_panel=RECORD)
]
Verbose = Annotated[bool, Option("-v", "--verbose", help="Say more", rich_help_panel=RECORD)]


@dataclass(frozen=True)
class Words:
    """What was given on the command line of the options that describe an experiment."""

    data: Data = None
    clients: Clients = None
    dirichlet: Dirichlet = None
    iid: Iid = False
    shards: Shards = None
    natural: Natural = False
    weights: Weights = None
    model: ModelName = None
    per_round: PerRound = None
    everyone: Everyone = False
    late: Async = False
    rounds: Rounds = None
    seeds: Seeds = None
    steps: Steps = None
    epochs: Epochs = None
    batch: Batch = None
    lr: Lr = None
    engine: Engine = None
    workers: Workers = None
    target: Target = None
    baseline: Baseline = None
    settings: Set = None
    use: Use = None
    log: Log = None


def with_words(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes all of these options; it gets them as one argument, `words`."""
    own = signature(command, eval_str=True).parameters
    options = signature(Words, eval_str=True).parameters
    shown = {name: p for name, p in {**own, **options}.items() if name != "words"}

    @wraps(command)
    def called(**given: Any) -> None:
        words = Words(**{name: given.pop(name) for name in options})
        command(words=words, **given)

    keyword = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in shown.values()]
    called.__signature__ = Signature(keyword)  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {p.name: p.annotation for p in keyword}
    del called.__wrapped__
    return called


def experiment_of(methods: list[str], words: Words, name: str) -> Experiment:
    """The experiment that methods and options describe.

    >>> e = experiment_of(["fedavg", "scaffold-m:beta=0.1,lr=0.5"], Words(clients=20), "example")
    >>> e.labels, e.local_of("scaffold-m beta=0.1 lr=0.5").lr, e.clients.number
    (['fedavg', 'scaffold-m beta=0.1 lr=0.5'], 0.5, 20)
    """
    use = [str(path.resolve()) for path in words.use or ()]
    registered(use)
    described_as: dict[str, Any] = {
        "name": name,
        "use": use,
        "data": {"name": words.data or "digits"},
        "clients": _clients(words),
        "participation": _participation(words),
        "local": _given(steps=words.steps, epochs=words.epochs, batch=words.batch, lr=words.lr),
        "algorithms": _methods(methods),
        "log": words.log or [],
        **_given(
            rounds=words.rounds, seeds=words.seeds, target=words.target, baseline=words.baseline
        ),
        **_given(model=words.model and {"name": words.model}),
        **(_late(words) if words.late else {}),
    }
    experiment = with_settings(described(described_as), words.settings or ())
    return with_engine(experiment, words.engine, words.workers)


def with_engine(experiment: Experiment, engine: str | None, workers: int | None) -> Experiment:
    """The experiment with another engine, or another number of workers.

    >>> e = experiment_of(["fedavg"], Words(), "example")
    >>> with_engine(e, "ray", 4).engine_choice
    EngineChoice(engine='ray', chunk=1, workers=4, since=1, shards=None, inside=None)
    """
    if engine is None and workers is None:
        return experiment
    before = experiment.engine if isinstance(experiment.engine, str) else experiment.engine.name
    name = engine or before
    value: Any = name
    if workers is not None:
        value = {"name": "sequential" if name == "auto" else name, "workers": workers}
    return described({**as_words(experiment), "engine": value})


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _clients(words: Words) -> dict[str, Any]:
    ways = {
        "--dirichlet": words.dirichlet is not None,
        "--iid": words.iid,
        "--shards": words.shards is not None,
        "--natural": words.natural,
    }
    chosen = [option for option, is_given in ways.items() if is_given]
    if len(chosen) > 1:
        raise InvalidInput(f"{' and '.join(chosen)} are different partitions: give one of them")
    number = 100 if words.clients is None else words.clients
    partition: dict[str, Any]
    if words.natural:
        if words.clients:
            raise InvalidInput(
                "--natural takes the clients that the data name: leave out --clients"
            )
        partition = {"partition": "natural"}
    elif words.iid:
        partition = {"partition": "iid", "number": number}
    elif words.shards is not None:
        partition = {"partition": "shards", "number": number, "each": words.shards}
    else:
        alpha = 0.2 if words.dirichlet is None else words.dirichlet
        partition = {"partition": "dirichlet", "number": number, "alpha": alpha}
    return partition | _given(weights=words.weights)


def _participation(words: Words) -> dict[str, Any]:
    if words.everyone and words.per_round is not None:
        raise InvalidInput("--everyone and --per-round contradict each other: give one of them")
    if words.everyone:
        return {"scheme": "everyone"}
    usual = 10 if words.clients is None else max(1, min(10, words.clients))
    return {"scheme": "uniform", "per_round": usual if words.per_round is None else words.per_round}


def _late(words: Words) -> dict[str, Any]:
    """Clients of different pace, and a server that does not wait for all of them."""
    size = 5 if words.per_round is None else words.per_round
    at_work = min(2 * size, words.clients or 100)
    return {
        "population": {"pace": {"median": 1.0, "sigma": 1.0}},
        "server": {"kind": "buffer", "size": size, "concurrency": at_work},
    }


def _methods(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for label, words in map(_method, texts):
        if label in found:
            raise InvalidInput(f"{label} is there twice: give it once, or with other parameters")
        found[label] = words
    return found


def _method(text: str) -> tuple[str, dict[str, Any]]:
    """A label and a method from "scaffold-m:beta=0.1,lr=0.5"; lr is the local step size."""
    name, _, rest = text.partition(":")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    words: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if not sign:
            raise InvalidInput(f"{text!r}: a method's parameters are written name:beta=0.1,lr=0.5")
        if key in ("lr", "steps", "epochs", "batch", "momentum", "weight_decay", "clip"):
            words.setdefault("local", {})[key] = value_of(value)
        else:
            words[key] = value_of(value)
    label = " ".join([name, *filter(None, rest.split(","))])
    return label, words


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
