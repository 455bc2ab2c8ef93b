"""What `undrift choose` says of federations: `python -m benchmarks.choices run [NAME ...]` measures, `table` writes
what docs/choices/*.json hold into docs/choosing.md.

Each answer is kept as it was written (choice.json), so the page says what was measured and nothing else.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import undrift as ud
from undrift.experiments.report.format import format_change, format_metric

ROOT = Path(__file__).parents[1]
CHOICES, PAGE = ROOT / "docs" / "choices", ROOT / "docs" / "choosing.md"
BEGIN, END = "<!-- begin: python -m benchmarks.choices table -->\n", "<!-- end -->\n"

# For data that take long: fewer methods and rounds, and fewer samples to evaluate on; six trials are one of every step size.
FEW = "--methods fedavg,fedprox,scaffold,scaffold-m,fedhbm,ghbm --trials 6 --seeds 2 --rounds 25 --validate 0.05"
FEDERATIONS = {
    "heart": ("heart by hospital", "--data heart --minutes 1"),
    "digits-dirichlet": ("digits, Dirichlet 0.1", "--data digits --dirichlet 0.1 --minutes 1.5"),
    "mnist-by-label": ("MNIST, Dirichlet 0.2", f"--data mnist --dirichlet 0.2 {FEW}"),
    "synthetic": ("Synthetic(1, 1)", "--data synthetic --set data.a=1 --set data.b=1 --minutes 1.5"),
    "digits-one-class": ("digits, one class a client", "--data digits --dirichlet 0 --minutes 1.5"),
    "hapt": (
        "HAPT by person",
        "--data hapt --per-round 10 --methods fedavg,scaffold,scaffold-m,fedhbm,ghbm --trials 6 --seeds 2 --rounds 25",
    ),
    "fashion-mnist": ("Fashion-MNIST, Dirichlet 0.2", f"--data fashion-mnist --dirichlet 0.2 {FEW}"),
    "mnist-by-writer": ("MNIST by writer", f"--data mnist-writers {FEW}"),
    "shakespeare": (
        "Shakespeare by role",
        "--data shakespeare --set clients.at_most=200 --set clients.choose=100 --methods fedavg,scaffold-m,fedhbm "
        "--batch 20 --per-round 5 --validate 0.05 --trials 6 --seeds 1 --rounds 20",
    ),
}


def run(names: list[str], out: Path) -> None:
    """Choose on these federations, one after another, and keep the answers."""
    CHOICES.mkdir(exist_ok=True)
    for name in names or FEDERATIONS:
        command = ["undrift", "choose", *shlex.split(FEDERATIONS[name][1]), "--out", str(out / name)]
        print(shlex.join(command), flush=True)
        if subprocess.run(command).returncode == 0:
            (CHOICES / f"{name}.json").write_bytes((out / name / "choice.json").read_bytes())


def table() -> str:
    """The answers as a table, and who was how often within noise of the best."""
    found = {
        name: ud.load_choice(CHOICES / f"{name}.json") for name in FEDERATIONS if (CHOICES / f"{name}.json").exists()
    }
    lines = [
        "| federation | label divergence | dissimilarity | a round | work | take | quality | FedAvg | bytes to FedAvg's quality | within noise of the best |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, choice in found.items():
        best, base, f, plan = choice.best, choice[choice.baseline], choice.federation, choice.plan
        change = (
            "–"
            if best is base or best.bytes is None or base.bytes is None
            else format_change(best.bytes / base.bytes - 1)
        )
        divergence = "–" if f["divergence"] is None else f"{f['divergence']:.2f}"
        close = [c.label for c in choice.contenders if c.noise and c is not best]
        lines.append(
            f"| [{FEDERATIONS[name][0]}](choices/{name}.json) | {divergence} | {f['gradient_dissimilarity']:.3g} | "
            f"{f['per_round']} of {f['clients']} | {plan['trials']} x {plan['seeds']} x {plan['rounds']} | `{best.spec}` | "
            f"{format_metric(best.quality, choice.metric, best.spread)} | {format_metric(base.quality, choice.metric, base.spread)} | "
            f"{change} | {', '.join(close) or 'none'} |"
        )
    lines += [
        "",
        "| method | taken | within noise of the best | reached FedAvg's quality | bytes to it, against FedAvg (median) | best of all |",
        "|---|---|---|---|---|---|",
    ]
    for label in dict.fromkeys(
        c.label for choice in found.values() for c in sorted(choice.contenders, key=lambda c: c.label)
    ):
        lines.append(_row(label, list(found.values())))
    return "\n".join(lines) + "\n"


def _row(label: str, choices: list[ud.Choice]) -> str:
    mine = [(choice, c) for choice in choices for c in choice.contenders if c.label == label]
    pairs = [(c.bytes, choice[choice.baseline].bytes) for choice, c in mine]
    ratios = [own / theirs for own, theirs in pairs if own is not None and theirs]
    middle = "–" if not ratios or label == "fedavg" else format_change(median(ratios) - 1)
    taken = sum(choice.chosen == label for choice, _ in mine)
    close = sum(bool(c.noise) for _, c in mine)
    reached = sum(c.bytes is not None for _, c in mine)
    top = sum(choice.contenders[0].label == label for choice, _ in mine)
    return f"| {label} | {taken} | {close} of {len(mine)} | {reached} | {middle} | {top} |"


def with_table(page: str) -> str:
    """The page with the table of today in place of the one that it has."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:], Path("runs") / "choices")
    elif sys.argv[1:] == ["table"]:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.exit(f"python -m benchmarks.choices run [NAME ...] or table; got {' '.join(sys.argv[1:]) or 'nothing'}")
