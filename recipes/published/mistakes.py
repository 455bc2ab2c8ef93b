"""SCAFFOLD right and wrong on heterogeneous quadratics: how far from x* each mistake ends, by seed."""

import torch

import undrift as ud
from undrift.algorithms.scaffold import Client, Down, Server, Up
from undrift.core import Cohort, Vec, Work, algorithm, hyper

N, D, STEPS = 10, 5, 10
MISTAKES = ("after", "way", "both", "sign", "epoch", "sum", "forgetful")
FAR = 1e9  # what is farther away, or diverges, counts as so far


@algorithm("scaffold-mistaken", "public code", local_momentum=True)
class ScaffoldMistaken:
    """SCAFFOLD with a mistake of public code.

    after      c - c_i is added after the momentum step, which makes up to 1/(1 - momentum) of a gradient, but one of c - c_i
    way        c_i is c_i - c + (x - y)/(K lr), which momentum makes up to 1/(1 - momentum) times too long
    both       the two together
    sign       c_i is c_i - c + (y - x)/(K lr)
    epoch      as "way", but K counts the minibatches of one epoch
    sum        the server adds to c the sum of what clients send, not its mean
    forgetful  as "after"; c_i is 0 in every visit, the client being made anew, and c grows by the mean of (y - x)/(K lr)
    """

    mistake: str = hyper(among=MISTAKES)
    epochs: int = hyper(default=10, within="[1, inf)")

    def server(self, x: Vec) -> Server:
        return Server(x, c=0 * x)

    def client(self, x: Vec) -> Client:
        return Client(c=0 * x)

    def send(self, server: Server) -> Down:
        return Down(server.x, server.c)

    def local(self, down: Down, client: Client, work: Work) -> tuple[Up, Client]:
        correction, late = down.c - client.c, self.mistake in ("after", "both", "forgetful")

        def step(y: Vec, total: Vec) -> tuple[Vec, Vec]:
            g = work.grad(y)
            new = work.step(y, g if late else g + correction)
            return new - work.lr * correction if late else new, total + g

        y, total = work.loop(step, down.x, 0 * down.x)
        delta = down.x - y
        way = delta / (work.lr * work.K)
        if self.mistake == "forgetful":
            return Up(delta, -way), client
        taken = {"way": way, "both": way, "sign": -way, "epoch": self.epochs * way}.get(self.mistake)
        dc = total / work.K - client.c if taken is None else taken - down.c
        return Up(delta, dc), Client(client.c + dc)

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        clients = cohort.N if self.mistake == "sum" else 1
        return Server(server.x - mean.delta, server.c + clients * cohort.share * mean.dc)


def quadratic(seed: int) -> ud.Quadratic:
    """Ten quadratics with eigenvalues in [0.3, 1] and optima that are apart."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)
    Q = torch.linalg.qr(draw(N, D, D))[0]
    H = (Q * (0.3 + 0.7 * torch.rand(N, 1, D, dtype=torch.float64, generator=random))) @ Q.mT
    H = (H + H.mT) / 2
    return ud.Quadratic(H, (H @ (3 * draw(N, D, 1))).squeeze(-1))


def distance(method: ud.Algorithm, seed: int, rounds: int, momentum: float) -> float:
    """|x - x*| over |x0 - x*|, after so many rounds of all clients."""
    problem = quadratic(seed)
    best = torch.linalg.solve(problem.H.mean(0), problem.e.mean(0))
    how = {"optimiser": "momentum", "momentum": momentum} if momentum else {}
    local = ud.Local(steps=STEPS, lr=0.02, **how)
    try:
        x = ud.run(method, problem, rounds=rounds, local=local, evaluate_every=rounds).x
    except ud.Diverged:
        return FAR
    return min(FAR, float((x - best).norm() / (problem.x0 - best).norm()))


def mistakes(quick: bool) -> dict[str, list[float]]:
    """Every mistake with local momentum and without, beside the right rule and FedAvg."""
    rounds = 20 if quick else 300
    methods = {"FedAvg": ud.FedAvg(), "right": ud.Scaffold()}
    methods |= {name: ScaffoldMistaken(mistake=name, epochs=2) for name in MISTAKES}
    return {
        f"{name}, momentum {momentum:g}": [
            distance(method, seed, rounds, momentum) for seed in range(1 if quick else 3)
        ]
        for name, method in methods.items()
        for momentum in (0.0, 0.9)
    }
