"""Client drift and its cure: four methods on handwritten digits, one class a client, 10 of 100 clients a round."""

from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import undrift as ud

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the backend is chosen)

ROUNDS, TARGET = 200, 0.9
METHODS = {
    "FedAvg": ud.FedAvg(),
    "SCAFFOLD": ud.Scaffold(),
    "SCAFFOLD-M": ud.ScaffoldM(beta=0.1),
    "FedHBM": ud.FedHBM(beta=1.0),
}
COLOURS = ["#777777", "#0072b2", "#d55e00", "#009e73"]  # distinguishable in any colour vision


def federation() -> ud.ModelProblem:
    digits: Any = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    X = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    Y = torch.tensor(digits.target[order])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    clients = ud.Dirichlet(100, alpha=0)
    train, test = (X[:1500], Y[:1500]), (X[1500:], Y[1500:])
    return ud.federate(train, test, model=net, loss=F.cross_entropy, clients=clients)


def main() -> None:
    problem, console = federation(), Console()
    results: dict[str, list[ud.Round]] = {}
    with Progress(console=console, transient=True) as progress:
        for name, method in METHODS.items():
            bar = progress.add_task(name, total=ROUNDS)
            results[name] = []
            for r in ud.rounds(
                method,
                problem,
                rounds=ROUNDS,
                participation=ud.Uniform(10),
                local=ud.Local(steps=10, batch=5, lr=0.1),
            ):
                results[name].append(r)
                progress.advance(bar)
    console.print(table(results))
    print(f"picture: {picture(results)}")


def table(results: dict[str, list[ud.Round]]) -> Table:
    made = Table(title="Digits, one class a client, 10 of 100 clients a round")
    made.add_column("method")
    for heading in ("accuracy, last 20 rounds", f"rounds to {TARGET:.0%}", f"MB to {TARGET:.0%}"):
        made.add_column(heading, justify="right")
    for name, rounds in results.items():
        last = [r.metrics["accuracy"] for r in rounds[-20:]]
        reached = next((r.round for r in rounds if r.metrics["accuracy"] >= TARGET), None)
        sent = sum(r.bytes_down + r.bytes_up for r in rounds[:reached]) / 1e6
        made.add_row(
            name,
            f"{sum(last) / len(last):.1%}",
            str(reached or "never"),
            f"{sent:.1f}" if reached else "-",
        )
    return made


def picture(results: dict[str, list[ud.Round]]) -> Path:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for (name, rounds), colour in zip(results.items(), COLOURS, strict=True):
        accuracy = [r.metrics["accuracy"] for r in rounds]
        sent = torch.tensor([r.bytes_down + r.bytes_up for r in rounds]).cumsum(0) / 1e6
        axes[0].plot([r.round for r in rounds], accuracy, color=colour, label=name)
        axes[1].plot(sent, accuracy, color=colour)
    axes[0].set(xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    axes[1].set(xlabel="MB sent, down and up")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="lower right")
    figure.suptitle("One class a client, 10 of 100 clients a round")
    path = Path("runs") / "digits.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
