"""The options of commands; those that set a key of an experiment take their type and help from its definition."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Option

from undrift.core.errors import InvalidInput, as_keys, known_name, speaking
from undrift.core.hyper import METHODS
from undrift.data.registry import DATASETS
from undrift.experiments.config import Experiment
from undrift.experiments.config.experiment import EvaluationSection
from undrift.experiments.config.parts import DEFAULT_LOCAL, register_files
from undrift.experiments.config.section import Section
from undrift.experiments.config.toml import Origin, Setting, change, from_dict, parse_setting, parse_value, to_dict
from undrift.local.settings import Local

# An option, and the group in which --help shows it.
federation = partial(Option, rich_help_panel="Federation")
work = partial(Option, rich_help_panel="Work")
record = partial(Option, rich_help_panel="Recording")

# Options that set a key of an experiment.
KEYS: dict[str, tuple[str, ...]] = {
    "data": ("data", "name"),
    "clients": ("clients", "number"),
    "weights": ("clients", "weights"),
    "model": ("model", "name"),
    "per_round": ("participation", "per_round"),
    "rounds": ("rounds",),
    "seeds": ("seeds",),
    "steps": ("local", "steps"),
    "epochs": ("local", "epochs"),
    "batch": ("local", "batch"),
    "lr": ("local", "lr"),
    "optimiser": ("local", "optimiser"),
    "schedule": ("local", "schedule"),
    "codec": ("codec", "name"),
    "clip": ("privacy", "clip"),
    "noise": ("privacy", "noise"),
    "epsilon": ("privacy", "epsilon"),
    "delta": ("privacy", "delta"),
    "engine": ("engine", "name"),
    "workers": ("engine", "workers"),
    "target": ("target",),
    "baseline": ("baseline",),
    "reference": ("reference",),
    "log": ("log",),
}
# Numbers that may also be given as other words, as in TOML.
WORDS = {"batch": "NUMBER or all", "seeds": "NUMBER or 3,5,7"}
# What other programs call these options.
ELSEWHERE = {
    "alpha": "dirichlet",
    "batch_size": "batch",
    "clients_per_round": "per_round",
    "dataset": "data",
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "local_steps": "steps",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "participation": "per_round",
    "seed": "seeds",
    "step_size": "lr",
}
# Defaults that are no key's own.
DEFAULTS = {
    "model": "by data set: undrift list data",
    "epochs": "5 on digits, 1 on other data",
    "batch": "5 on digits, 32 on other data",
    "baseline": "fedavg, else the first method",
    "workers": "1",
}
PANELS: dict[str, Any] = dict.fromkeys(("data", "clients", "weights", "model"), federation)
PANELS |= dict.fromkeys(("target", "baseline", "reference", "log"), record)


def define(key: tuple[str, ...]) -> tuple[Any, str]:
    """The type of a key of an experiment, and a sentence about it, from its definition."""
    if key[0] == "local":
        setting = Local.__dataclass_fields__[key[1]]
        return setting.type, setting.metadata["help"]
    if key == ("engine", "workers"):
        return int, "Clients side by side, on so many cores"
    field = Experiment.model_fields[key[0]]
    for section in (field.annotation, *get_args(field.annotation)):  # which may be left out
        if isinstance(section, type) and issubclass(section, Section):
            field = section.model_fields[key[1]]
    return field.annotation, field.description or ""


def option(name: str) -> Any:
    """The option of this name, which sets a key; its help tells the default."""
    about, default = define(KEYS[name])[1], DEFAULTS.get(name) or default_of(KEYS[name]) or False
    return PANELS.get(name, work)(flag_of(name), help=about, show_default=default, metavar=WORDS.get(name))


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def default_of(key: tuple[str, ...]) -> str:
    """What an experiment has for a key that nobody set, "" if nothing.

    >>> default_of(("rounds",)), default_of(("local", "lr")), default_of(("clients", "number")), default_of(("target",))
    ('100', '0.1', '100', '')
    """
    value: Any = _usual_words()
    for part in key:
        value = value.get(part, "") if isinstance(value, dict) else value if part == "name" else ""
    return f"{len(value)}" if key == ("seeds",) else "" if value == [] else f"{value}"


@cache
def _usual_words() -> dict[str, Any]:
    return to_dict(Experiment(algorithm={"name": "fedavg"}))  # pyright: ignore[reportArgumentType]


def option_type(name: str) -> Any:
    """What the option of this name takes: a word, a number, or words if it may be repeated.

    >>> option_type("lr"), option_type("steps"), option_type("log")
    (float | None, int | None, list[str] | None)
    """
    annotation, _ = define(KEYS[name])
    if annotation == list[str]:
        return list[str] | None
    if name in WORDS:
        return str | None
    kinds = list(_plain_types(annotation))
    return (float if float in kinds and kinds[0] is not str else kinds[0]) | None


def _plain_types(annotation: Any) -> Iterator[type]:
    if annotation in (int, float, str):
        yield annotation
    for inner in get_args(annotation):
        yield from [str] if isinstance(inner, str) else _plain_types(inner)  # of a Literal, words


Engine = Annotated[str | None, option("engine")]
Workers = Annotated[int | None, option("workers")]
Target = Annotated[float | None, option("target")]
Baseline = Annotated[str | None, option("baseline")]
Set = Annotated[list[str] | None, record("--set", metavar="KEY=VALUE", help="Set any key, e.g. --set local.clip=1")]
Out = Annotated[Path | None, record("--out", help="The directory to make")]
Jobs = Annotated[int | None, record("--jobs", min=1, help="Runs at a time, by default as end soonest on the cores")]
Dry = Annotated[bool, record("--dry", help="Show the experiment, its engine, bytes and time; record nothing")]
Quiet = Annotated[bool, record("-q", "--quiet", help="Print only errors")]
Verbose = Annotated[bool, record("-v", "--verbose", help="Print more")]

OUTSIDE_BRACKETS = re.compile(r",(?![^\[{]*[\]}])")  # between a method's parameters
UNLABELLED = re.compile(r"[\[\]{}\"']")  # what a label leaves out of them
PARAMETER = {"dirichlet": "alpha", "shards": "each"}  # that the option of a partition gives


def base_experiment(
    *,
    dirichlet: Annotated[
        float | None,
        federation(
            metavar="ALPHA",
            help="Clients of equal size, the labels of each drawn from Dirichlet(ALPHA, ..., ALPHA); 0: one class each.  "
            "Class by class over clients of unequal size, as others do: --set clients.partition=class-dirichlet",
            show_default="0.2",
        ),
    ] = None,
    iid: Annotated[bool, federation("--iid", help="Clients alike")] = False,
    shards: Annotated[int | None, federation(metavar="EACH", help="EACH label-sorted shards per client")] = None,
    natural: Annotated[bool, federation("--natural", help="Clients as the data name them")] = False,
    everyone: Annotated[bool, work("--everyone", help="All clients every round")] = False,
    asynchronous: Annotated[
        bool,
        work(
            "--async",
            help="Virtual time: clients of different pace, and a server that steps when PER-ROUND updates have come; "
            "twice as many are kept at work.  More with --set population.... and server....",
        ),
    ] = False,
    settings: Set = None,
    use: Annotated[list[Path] | None, record(help=define(("use",))[1])] = None,
    **keys: Any,
) -> tuple[dict[str, Any], list[Setting]]:
    """What an experiment begins with, and what these options, KEYS and --set change of it, in this order."""
    partitions = {"dirichlet": dirichlet, "iid": iid, "shards": shards, "natural": natural}
    chosen = {name: value for name, value in partitions.items() if is_given(value)}
    clients, per_round = keys.get("clients"), keys.get("per_round")
    if len(chosen) > 1:
        options = " and ".join(f"--{name}" for name in chosen)
        raise InvalidInput(f"{options} are different partitions: give one of them")
    if natural and clients:
        raise InvalidInput("--natural takes the clients that the data name: leave out --clients")
    if everyone and per_round is not None:
        raise InvalidInput("--everyone and --per-round contradict each other: give one of them")
    files = [str(path.resolve()) for path in use or ()]
    register_files(files)
    words: dict[str, Any] = {"use": files, "clients": {"number": 100, "partition": "dirichlet", "alpha": 0.2}}
    entry = DATASETS.get(keys.get("data") or "")
    own = entry.clients if entry and clients is None and {*chosen} <= {"natural"} else None
    if own is not None:  # the data have clients of their own, which an experiment knows
        del words["clients"]
    if everyone:
        words["participation"] = {"scheme": "everyone"}
    if asynchronous:
        number = clients or own or 100
        size = min(5, number) if per_round is None else per_round
        words["population"] = {"pace": {"median": 1.0, "sigma": 1.0}}
        at_work = min(2 * size, number)
        words["server"] = {"kind": "buffer", "size": size, "concurrency": at_work}
    changes: list[Setting] = []
    for name, value in chosen.items():
        shown = f"--{name} {value}" if name in PARAMETER else f"--{name}"
        changes.append(Setting(("clients", "partition"), name, shown))
        if name in PARAMETER:
            changes.append(Setting(("clients", PARAMETER[name]), value, shown))
    changes += [*settings_of(keys), *map(parse_setting, settings or ())]
    words["local"] = default_local(words, changes)
    return words, changes


def default_local(words: Mapping[str, Any], changes: Sequence[Setting]) -> dict[str, Any]:
    """The local work of a comparison that does not say: enough steps that clients can drift, on small data too."""
    given = {setting.key: setting.value for setting in changes}
    local = dict(DEFAULT_LOCAL.get(str(given.get(("data", "name"), "digits")).casefold(), {}))
    if ("local", "steps") in given or ("local", "epochs") in given:
        local.pop("epochs", None)
    return local


def as_flags(python: str, keys: Mapping[tuple[str, ...], Any]) -> str:
    """How settings are called on this command line: by their options, or with --set.

    >>> as_flags("", {("participation", "scheme"): "everyone"}), as_flags("", {("local", "clip"): 1, ("local", "lr"): ...})
    ('--everyone', '--set local.clip=1 --lr')
    """
    flags = {key: flag_of(name) for name, key in KEYS.items()}

    def said(key: tuple[str, ...], value: Any) -> str:
        if value == "everyone":
            return "--everyone"
        if key == ("population",):
            return "--async"
        if key == ("clients", "partition") and value in signature(base_experiment).parameters:
            return f"--{value}"
        if len(key) == 1:
            return f"--{key[0]}" + ("" if value is ... else f" {value}")
        if key in flags:
            return flags[key] if value is ... else f"{flags[key]} {value}"
        return f"--set {'.'.join(key)}" + ("" if value is ... else f"={value}")

    return " ".join(said(key, value) for key, value in keys.items())


def as_typed(python: str, keys: Mapping[tuple[str, ...], Any]) -> str:
    """How settings are called where an experiment is a file: by its keys, and what no file has by its option."""
    in_files = all(key[0] in Experiment.model_fields for key in keys)
    return (as_keys if in_files else as_flags)(python, keys)


def instead_of(option: str, offered: Collection[str]) -> str:
    """What to write in place of an option that there is not, "" if nobody knows; `offered` are those of the command.

    >>> instead_of("--learning-rate", ["lr"]), instead_of("--momentum", ["lr"]), instead_of("--mu", ["lr"])
    ('use --lr', 'use --set local.momentum=...', "a method's parameters follow its name, as in fedprox:mu=...")
    """
    word = option.lstrip("-").replace("-", "_")
    name = ELSEWHERE.get(word, word)
    if name in offered:
        return f"use {flag_of(name)}"
    sections = (
        ((), Experiment.model_fields),
        (("local",), Local.__dataclass_fields__),
        (("evaluation",), EvaluationSection.model_fields),
    )
    keys = [KEYS[name]] if name in KEYS else [(*above, name) for above, fields in sections if name in fields]
    if keys:
        return f"use --set {'.'.join(keys[0])}=..."
    methods = (each for each, entry in METHODS.items() if word in signature(entry.make).parameters)
    method = next(methods, None)
    return f"a method's parameters follow its name, as in {method}:{word}=..." if method else ""


def is_given(value: Any) -> bool:
    """Whether an option was given; 0 is as good as any number."""
    return value is not None and value is not False


def takes_experiment(command: Callable[..., None]) -> Callable[..., None]:
    """A command with all options that describe an experiment; it gets those that were given as one dict, `given`."""
    own = signature(command, eval_str=True).parameters
    shortcuts = signature(base_experiment, eval_str=True).parameters
    described = {name: p for name, p in shortcuts.items() if name != "keys"}
    for name in KEYS:
        kind = Annotated[option_type(name), option(name)]
        described[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    @wraps(command)
    def call(**values: Any) -> None:
        of_experiment = {name: values.pop(name) for name in described}
        with speaking(as_flags):
            command(given={n: _parsed(n, v) for n, v in of_experiment.items() if is_given(v)}, **values)

    shown = {name: p for name, p in {**own, **described}.items() if name != "given"}
    keyword = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in shown.values()]
    call.__signature__ = Signature(keyword)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {p.name: p.annotation for p in keyword}
    del call.__wrapped__
    return call


def _parsed(name: str, value: Any) -> Any:
    if name not in WORDS:
        return value
    return parse_value(f"[{value}]" if "," in value else value)


def make_experiment(methods: list[str], given: Mapping[str, Any], name: str) -> Experiment:
    """The experiment that methods and options describe.

    >>> e = make_experiment(["fedavg", "scaffold-m:beta=0.1,lr=0.5"], {"clients": 20}, "example")
    >>> e.labels, e.local_of("scaffold-m beta=0.1 lr=0.5").lr, e.clients.number
    (['fedavg', 'scaffold-m beta=0.1 lr=0.5'], 0.5, 20)
    """
    words, settings = base_experiment(**given)
    register_files(words["use"])
    words |= {"name": name, "algorithms": {}}
    typed = []
    for text in methods:
        label, method = _method(text)
        if label in words["algorithms"]:
            raise InvalidInput(f"{label} is there twice: give it once, or with other parameters")
        words["algorithms"][label] = method
        typed.append(Setting(("algorithms", label), method, text))
    return from_dict(words, Origin(settings=[*typed, *change(words, settings)]))


def settings_of(given: Mapping[str, Any]) -> list[Setting]:
    """The keys that options set.

    >>> settings_of({"per_round": 5, "engine": None})
    [Setting(key=('participation', 'per_round'), value=5, option='--per-round 5')]
    """
    values = {name: given.get(name) for name in KEYS}
    return [
        Setting(KEYS[name], value, f"{flag_of(name)} {_shown(value)}")
        for name, value in values.items()
        if value is not None
    ]


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def _method(text: str) -> tuple[str, dict[str, Any]]:
    """A label and a method from "scaffold-m:beta=0.1,lr=0.5"; lr is the local step size."""
    name, _, rest = text.partition(":")
    name = known_name("method", name, METHODS)
    own = signature(METHODS[name].make).parameters
    words: dict[str, Any] = {"name": name}
    given = [part for part in OUTSIDE_BRACKETS.split(rest) if part]
    for part in given:
        key, sign, value = part.partition("=")
        if not sign:
            raise InvalidInput(f"{text!r}: a method's parameters are written name:beta=0.1,lr=0.5")
        is_local = key in Local.__dataclass_fields__ and key not in own
        place = words.setdefault("local", {}) if is_local else words
        if key in place:
            raise InvalidInput(f"{text!r}: {key} is there twice")
        place[key] = parse_value(value)
    return UNLABELLED.sub("", " ".join([name, *given])), words


def count_cores() -> int:
    """The processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
