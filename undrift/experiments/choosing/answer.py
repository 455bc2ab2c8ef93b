"""From the final runs of tuned methods to an answer: which method, at what price, how sure."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput, setting
from undrift.experiments.choosing.describe import federation_in_words
from undrift.experiments.report.costs import first_round
from undrift.experiments.report.format import format_bytes, format_change, format_metric, plural
from undrift.experiments.runs.files import Damaged, read_json, write_json
from undrift.metrics.quality import higher_is_better, spread

CONFIDENCE = 0.95  # of the interval of differences by seed that must leave out zero


@dataclass(frozen=True)
class Final:
    """The runs of a method with its best settings, with seeds that it was not tuned on.

    words    the method as an experiment has it          tuned    what was chosen of them
    rounds   those that were evaluated                   values   the metric after each, by seed
    sent     bytes down and up until then, of all clients, mean over seeds
    state    bytes that a client keeps                   visit    bytes down and up of a visit
    """

    label: str
    words: Mapping[str, Any]
    tuned: Mapping[str, Any]
    rounds: Sequence[int]
    values: Sequence[Sequence[float]]
    sent: Sequence[float]
    state: int
    visit: float
    edges: Sequence[str] = ()
    stopped: str | None = None

    def qualities(self, last: int) -> tuple[float, ...]:
        return tuple(float(np.mean(each[-last:])) for each in self.values)

    def cost(self, quality: float, higher: bool) -> tuple[int, float] | None:
        """Rounds and bytes to a quality of the mean over seeds, None if it is never reached."""
        mean = np.mean(self.values, axis=0)
        r = first_round(np.asarray(self.rounds), mean, quality, higher)
        return None if r is None else (r, self.sent[list(self.rounds).index(r)])


@dataclass(frozen=True)
class Contender:
    """What was found of a method.

    quality, spread    of its final runs: mean and standard deviation over seeds
    behind             how much worse than the best it is       noise   whether that may be chance; None: one seed, unknown
    rounds, bytes      to the baseline's quality; None if it never had it       total    bytes of all rounds
    state, visit       bytes that a client keeps between rounds; that travel to and from it in a visit
    """

    label: str
    words: Mapping[str, Any]
    tuned: Mapping[str, Any]
    qualities: Sequence[float]
    quality: float
    spread: float | None
    behind: float
    noise: bool | None
    rounds: int | None
    bytes: float | None
    total: float
    state: int
    visit: float
    edges: Sequence[str] = ()

    @property
    def spec(self) -> str:
        """The method as `undrift compare` takes it: scaffold-m:beta=0.1,lr=0.5."""
        own = {key: value for key, value in self.words.items() if key not in ("name", "local")}
        given = [f"{key}={_number(value)}" for key, value in (own | self.words.get("local", {})).items()]
        return f"{self.words['name']}:{','.join(given)}" if given else str(self.words["name"])


@dataclass(frozen=True)
class Choice:
    """What `undrift choose` found; `print` it, or look at its parts.

    chosen      label of the method to take           baseline    the one that prices are compared with
    contenders  all tuned methods, the best first     failed      methods without a result, and why
    federation  what the federation is like           plan        the work that was done, and by what it was settled
    """

    chosen: str
    baseline: str
    metric: str
    contenders: tuple[Contender, ...]
    failed: Mapping[str, str]
    federation: Mapping[str, Any]
    plan: Mapping[str, Any]
    data: str
    next: str

    def __getitem__(self, label: str) -> Contender:
        for each in self.contenders:
            if each.label == label:
                return each
        raise InvalidInput(f"{label} was not tried to its end: there are {', '.join(c.label for c in self.contenders)}")

    @property
    def best(self) -> Contender:
        """The method to take."""
        return self[self.chosen]

    def save(self, path: str | Path) -> None:
        """Write it as JSON; `ud.load_choice` reads it."""
        write_json(Path(path), asdict(self))

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def __str__(self) -> str:
        return "\n".join([*federation_in_words(self.federation), "", *self.answer(), self.next])

    __repr__ = __str__

    def answer(self) -> Iterator[str]:
        """Which method with which settings, at what price, how sure, in sentences."""
        best, base, top = self.best, self[self.baseline], self.contenders[0]
        show = lambda c: format_metric(c.quality, self.metric, c.spread)
        seeds = len(best.qualities)
        yield f"Take {best.spec}."
        against = "" if best is base else f"; tuned {base.label} {show(base)}"
        yield (
            f"It reaches {self.metric} {show(best)} on held-out data after {plural(self.plan['rounds'], 'round')} "
            f"({plural(seeds, 'seed')} that nothing was tuned on){against}."
        )
        yield from self._price(best, base)
        yield from self._sureness(top, show)
        for each in (best, *(c for c in self.contenders[:1] if c is not best)):
            yield from (f"{each.label}: {edge}" for edge in each.edges)
        yield from (f"{label}: left out, {reason}" for label, reason in self.failed.items())

    def _price(self, best: Contender, base: Contender) -> Iterator[str]:
        state = f"a client keeps {format_bytes(best.state)}" if best.state else "clients keep no state"
        yield f"A visit takes {format_bytes(best.visit)} down and up; {state}."
        if best is base:
            cheaper = [c for c in self.contenders if c.bytes is not None and base.bytes and c.bytes < base.bytes]
            if not cheaper:
                yield f"No other method had {base.label}'s quality with fewer bytes."
        elif best.bytes is None or base.bytes is None:
            yield f"It never had {base.label}'s final quality; all of its rounds took {format_bytes(best.total)}."
        else:
            yield (
                f"{base.label}'s final quality takes it {format_bytes(best.bytes)} in {plural(best.rounds or 0, 'round')}, {base.label} "
                f"itself {format_bytes(base.bytes)} in {base.rounds}: {format_change(best.bytes / base.bytes - 1)} bytes."
            )

    def _sureness(self, top: Contender, show: Any) -> Iterator[str]:
        if top.noise is None:
            yield "With one seed nothing can be said of chance: take more seeds before you rely on it."
            return
        within = [c for c in self.contenders if c.noise and c is not top]
        worse = [c for c in self.contenders if not c.noise]
        if self.chosen != top.label:
            yield (
                f"{top.label} had the best mean, {show(top)}, within noise of it; among such methods the one that gets "
                "there with the fewest bytes is taken."
            )
        listed = lambda some: ", ".join(f"{c.label} ({show(c)})" for c in some)
        others = [c for c in within if c.label != self.chosen]
        if others:
            yield f"Within noise of the best: {listed(others)}."
        if worse:
            yield f"Worse than chance explains ({CONFIDENCE:.0%}, differences by seed): {listed(worse)}."
        elif len(self.contenders) > 1:
            yield "Nothing was worse than chance explains: quality does not decide here, the price does."
        if len(top.qualities) == 2:
            yield f"Two seeds hardly tell a difference from chance: more {setting('seeds', seeds=...)} may."


def decide(finals: Sequence[Final], metric: str, last: int, baseline: str) -> tuple[str, str, tuple[Contender, ...]]:
    """The label to take, the baseline, and what was found of every method, the best first.

    Of all methods that are within noise of the best one, the one is taken that needs the fewest bytes to the quality that
    all of them have; of equals, the one whose clients keep less.
    """
    higher = bool(higher_is_better(metric))
    sign = 1 if higher else -1
    qualities = {f.label: np.asarray(f.qualities(last)) for f in finals}
    ranked = sorted(finals, key=lambda f: -sign * qualities[f.label].mean())
    base = next((f for f in finals if f.label == baseline), ranked[0])
    top = qualities[ranked[0].label]

    def contender(f: Final) -> Contender:
        mine = qualities[f.label]
        cost = f.cost(float(qualities[base.label].mean()), higher)
        return Contender(
            f.label, dict(f.words), dict(f.tuned), tuple(map(float, mine)), float(mine.mean()),
            spread([float(q) for q in mine]), float(sign * (top.mean() - mine.mean())), within_noise(sign * (top - mine)),
            *(cost or (None, None)), f.sent[-1], f.state, f.visit, tuple(f.edges),
        )  # fmt: skip

    found = tuple(map(contender, ranked))
    close = [f for f, c in zip(ranked, found, strict=True) if c.noise or c is found[0]]
    goal = float(qualities[close[-1].label].mean())
    price = {f.label: (f.cost(goal, higher) or (0, math.inf))[1] for f in close}
    chosen = min(close, key=lambda f: (price[f.label], f.state))
    return chosen.label, base.label, found


def within_noise(behind: Sequence[float] | np.ndarray) -> bool | None:
    """Whether differences by seed may be chance: zero is in the interval of their mean; None of a single one.

    >>> within_noise([0.1, -0.1, 0.05]), within_noise([0.10, 0.11, 0.10]), within_noise([0.1])
    (True, False, None)
    """
    from scipy.special import stdtrit  # slow to import

    n = len(behind)
    if n < 2:
        return None
    reach = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * np.std(behind, ddof=1) / math.sqrt(n)
    return bool(np.mean(behind) <= reach)


def load_choice(path: str | Path) -> Choice:
    """The choice that a choice.json holds, or the directory it is in."""
    path = Path(path)
    path = path / "choice.json" if path.is_dir() else path
    try:
        words = read_json(path)
        each = (c | {name: tuple(c[name]) for name in ("qualities", "edges")} for c in words["contenders"])
        words["contenders"] = tuple(Contender(**c) for c in each)
        return Choice(**words)
    except Damaged as error:
        raise InvalidInput(
            f"{error}: give what `undrift choose` wrote; `undrift resume` of its folder writes it anew"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no choice ({error}): give what `undrift choose` wrote") from None


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
