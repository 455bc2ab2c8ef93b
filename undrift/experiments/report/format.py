"""Numbers and lists as people read them."""

import math
import re
from collections.abc import Sequence
from typing import Any

from undrift.metrics.quality import is_share

UNKNOWN = "–"
LISTED = 4  # names in a sentence
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|±|[kMGT]?B\b|m?s\b|min\b|h\b))|(?<=±) ")


def format_metric(value: float | None, metric: str = "", std: float | None = None) -> str:
    """A metric, with its standard deviation to the same number of places; accuracies in percent.

    >>> format_metric(0.8418, "accuracy"), format_metric(2.5e-7), format_metric(None)
    ('84.18 %', '2.5e-07', '–')
    >>> format_metric(0.8418, "accuracy", 0.0123), format_metric(12.3456, "loss", 0.5)
    ('84.18 ± 1.23 %', '12.35 ± 0.50')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN if value is None else "not finite"
    scale, unit = (100, " %") if is_share(metric) else (1, "")
    if unit:
        digits, spread_digits = ".2f", ".2f"
    elif value != 0 and not 1e-3 <= abs(value) < 1e5:
        digits, spread_digits = ".3g", ".2g"
    else:
        places = 4 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        digits = spread_digits = f".{places}f"
    spread = "" if std is None else f" ± {scale * std:{spread_digits}}"
    return f"{scale * value:{digits}}{spread}{unit}"


def format_target(value: float, metric: str) -> str:
    """A target as it was given.

    >>> format_target(0.9, "accuracy"), format_target(0.01, "loss")
    ('90 %', '0.01')
    """
    return f"{100 * value:g} %" if is_share(metric) else f"{value:g}"


def format_count(count: float) -> str:
    """
    >>> format_count(1200), format_count(78.5)
    ('1,200', '78.5')
    """
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def format_bytes(count: float) -> str:
    """
    >>> format_bytes(512), format_bytes(3.848e6)
    ('512 B', '3.85 MB')
    """
    power = 0
    while abs(count) >= 999.5 and power < 4:
        count, power = count / 1000, power + 1
    return f"{_three_digits(count)} {'kMGT'[power - 1]}B" if power else f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(0.0421), format_seconds(75.2), format_seconds(7380), format_seconds(0)
    ('42.1 ms', '1 min 15 s', '2 h 03 min', '0 s')
    """
    if 0 < seconds < 0.9995:
        return f"{_three_digits(1000 * seconds)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def format_change(change: float) -> str:
    """
    >>> format_change(-0.6614), format_change(0.0), format_change(2.0)
    ('−66.1 %', '±0 %', '+200.0 %')
    """
    if abs(change) < 5e-4:
        return "±0 %"
    return f"{'−' if change < 0 else '+'}{abs(100 * change):.1f} %"


def format_rough_change(change: float) -> str:
    """Of times that were measured once, on a machine that may have done other things as well.

    >>> format_rough_change(-0.394), format_rough_change(0.03)
    ('−39 %', '±0 %')
    """
    return "±0 %" if abs(change) < 0.05 else f"{'−' if change < 0 else '+'}{abs(100 * change):.0f} %"


def format_settings(value: Any) -> str:
    """Settings of an experiment on one line.

    >>> format_settings({"lr": 0.1, "pace": {"median": 1, "sigma": 2}, "hidden": [64, 32]})
    'lr 0.1, pace (median 1, sigma 2), hidden 64 32'
    """
    if isinstance(value, dict):
        pairs = [(key.replace("_", " "), format_settings(each)) for key, each in value.items()]
        return ", ".join(f"{k} ({text})" if ", " in text else f"{k} {text}" for k, text in pairs)
    if isinstance(value, list):
        return " ".join(map(format_settings, value[:6])) + (" …" if value[6:] else "")
    return "none" if value is None else str(value)


def join_names(names: Sequence[str]) -> str:
    """Names as a sentence lists them; of many, the last ones are counted.

    >>> join_names(["a"]), join_names(["a", "b", "c"]), join_names(list("abcdef"))
    ('a', 'a, b and c', 'a, b, c, d and 2 others')
    """
    if len(names) > LISTED + 1:
        names = [*names[:LISTED], f"{len(names) - LISTED} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "round"), plural(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def keep_units(text: str) -> str:
    """Non-breaking spaces between numbers, their spread and their unit.

    >>> keep_units("84.18 ± 1.23 % after 17.6 s and 3 rounds")
    '84.18\\xa0±\\xa01.23\\xa0% after 17.6\\xa0s and 3 rounds'
    """
    return BEFORE_UNIT.sub("\u00a0", text)


def printable(text: str) -> str:
    """A text whose control characters are shown instead of obeyed by the terminal.

    >>> print(printable("fedavg\\x1b[2J"))
    fedavg\\x1b[2J
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
