"""`ud.choose`: the same from Python, also for a problem that no experiment describes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from undrift.core.errors import InvalidInput, known_name
from undrift.core.hyper import METHODS, check_value
from undrift.experiments.choosing.answer import Choice
from undrift.experiments.choosing.choosing import DEFAULT_METHODS, Maker, carry_out, conclude, prepare_choosing
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation
from undrift.experiments.config.toml import from_dict, to_dict
from undrift.local import Local
from undrift.problems.model import ModelProblem
from undrift.simulation.participation import Participation
from undrift.simulation.progress import progress_of
from undrift.simulation.results import Round


def choose(
    problem: ModelProblem | Callable[[int], ModelProblem] | Experiment | str,
    *,
    minutes: float = 5.0,
    methods: Sequence[str] | None = None,
    local: Local | None = None,
    participation: Participation | None = None,
    trials: int | None = None,
    rounds: int | None = None,
    seeds: int | None = None,
    validate: float = 0.2,
    space: str = "choose",
    out: str | Path | None = None,
    progress: bool | str = "auto",
) -> Choice:
    """Which method to take on a federation, with which settings: a short list is tuned fairly within a budget of minutes.

    problem         what `ud.federate` made, or a function of the seed that makes it, for partitions that differ; an
                    `ud.Experiment`, or the name of a data set
    minutes         what it may take about; turned into trials, rounds and seeds before anything starts
    methods         names; a short list by default, without those that do not fit the run
    local           local training, `lr` is tuned          participation   who takes part; everyone by default
    trials, rounds, seeds   of every method: settle these rather than have the minutes do so; with all three nothing is
                    timed, and the same call does the same work anywhere
    validate        part of every client's training data that is held out to choose by
    space           which values are tried: `undrift list spaces`
    out             a directory to keep it in, and to resume it from; for an experiment or a data set
    progress        True: show a bar, False: none, "auto": on a terminal or in a notebook only

    >>> import torch, torch.nn.functional as F, undrift as ud
    >>> data = torch.randn(120, 2), torch.arange(120) % 3
    >>> problem = ud.federate(data, model=torch.nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> found = choose(problem, methods=["fedavg", "scaffold"], local=ud.Local(steps=2), trials=2, rounds=3, seeds=2)
    >>> sorted(c.label for c in found.contenders), found.best.label == found.chosen
    (['fedavg', 'scaffold'], True)
    """
    wanted = [methods] if isinstance(methods, str) else methods or DEFAULT_METHODS
    names = [known_name("method", name, METHODS) for name in wanted]
    given = {n: v for n, v in {"trials": trials, "rounds": rounds, "seeds": seeds}.items() if v is not None}
    for name, value in given.items():
        check_value("choose", name, value, int, within="[1, inf)")
    experiment, make = _experiment(problem, names, methods is not None, local, participation)
    if make is not None and out is not None:
        raise InvalidInput(
            "out keeps what can be made again from words, an experiment or a data set: save a choice with .save"
        )
    path = None if out is None else Path(out)
    ready = prepare_choosing(experiment, minutes, given, space, validate, path, methods is None, make)
    with TemporaryDirectory(prefix="undrift-choose-") as folder:
        place = path or Path(folder)
        total = sum(search.trials + 1 for search in ready.sweep.searches)
        with progress_of(progress, "choose", total) as show:
            for n, _ in enumerate(carry_out(ready, place, path is not None), 1):
                show(Round(n, (), {}, 0, 0, 0.0))
        return conclude(ready, place, path is not None)


def _experiment(
    problem: Any, names: Sequence[str], named: bool, local: Local | None, participation: Participation | None
) -> tuple[Experiment, Maker | None]:
    """The experiment that a choice is made on, and what makes its federations if it does not itself."""
    algorithms = {name: {"name": name} for name in names}
    words: dict[str, Any] = {}
    words |= {name: each for name, each in {"local": local, "participation": participation}.items() if each is not None}
    if isinstance(problem, Experiment):
        known = to_dict(problem)
        if named or not problem.methods:
            known = {key: value for key, value in known.items() if key not in ("algorithm", "algorithms", "baseline")}
            known["algorithms"] = algorithms
        return from_dict(known | words), None
    if isinstance(problem, str):
        return from_dict({"data": problem, "algorithms": algorithms} | words), None
    make: Callable[[int], Any] = (
        problem if not isinstance(problem, ModelProblem) and callable(problem) else lambda _: problem
    )
    first = make(0)
    if not isinstance(first, ModelProblem):
        raise InvalidInput(
            f"choose holds out data of clients, which a problem of ud.federate has; got {type(first).__name__}"
        )
    words.setdefault("participation", {"scheme": "everyone"})
    words["clients"] = {"partition": "iid", "number": first.N}  # for the checks: `make` builds the federations
    return from_dict({"algorithms": algorithms} | words), lambda seed: Federation(make(seed), {})
