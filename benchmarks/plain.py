"""What Undrift is measured against: the loop that one writes by hand, and the bare step."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.peers.shared import evaluate
from benchmarks.workloads import Workload


def plain(w: Workload) -> Iterator[None]:
    """FedAvg or SCAFFOLD as a plain PyTorch loop, round after round: a model, an optimiser, slices of tensors."""
    X, Y = w.data()
    server, random, test = w.model(), torch.Generator().manual_seed(2), w.test()
    X, Y = X.view(w.clients, w.samples, *X.shape[1:]), Y.view(w.clients, w.samples)
    zeros = [torch.zeros_like(p) for p in server.parameters()]
    c, own = deepcopy(zeros), {}
    while True:
        total = [torch.zeros_like(p) for p in server.parameters()]
        total_c = [torch.zeros_like(p) for p in server.parameters()]
        for i in torch.randperm(w.clients, generator=random)[: w.cohort].tolist():
            net = deepcopy(server)
            net.train()
            optimiser = torch.optim.SGD(net.parameters(), lr=w.lr)
            order = torch.randperm(w.samples, generator=random)
            mine = own.get(i, zeros)
            for k in range(w.steps):
                at = k * w.batch % (w.samples - w.batch + 1)
                batch = order[at : at + w.batch]
                optimiser.zero_grad()
                F.cross_entropy(net(X[i][batch]), Y[i][batch]).backward()
                if w.method == "scaffold":
                    for p, a, b in zip(net.parameters(), c, mine, strict=True):
                        assert p.grad is not None
                        p.grad += a - b
                optimiser.step()
            with torch.no_grad():
                pairs = zip(total, server.parameters(), net.parameters(), strict=True)
                for sum_, x, y in pairs:
                    sum_ += (x - y) / w.cohort
                if w.method == "scaffold":
                    new = [
                        b - a + (x - y) / (w.steps * w.lr)
                        for a, b, x, y in zip(c, mine, server.parameters(), net.parameters(), strict=True)
                    ]
                    for sum_, n, b in zip(total_c, new, mine, strict=True):
                        sum_ += (n - b) / w.clients
                    own[i] = new
        with torch.no_grad():
            for x, step in zip(server.parameters(), total, strict=True):
                x -= step
            for a, step in zip(c, total_c, strict=True):
                a += step
        if w.evaluated:
            evaluate(server, *test)
        yield None


def bare(w: Workload) -> Iterator[None]:
    """Forward and backward passes of a round's samples, and nothing else."""
    X, Y = w.data()
    net: Any = w.model()
    parameters = list(net.parameters())
    X, Y = X[: w.batch].clone(), Y[: w.batch].clone()
    while True:
        for _ in range(w.cohort * w.steps):
            torch.autograd.grad(F.cross_entropy(net(X), Y), parameters)
        yield None


def products(w: Workload) -> Iterator[None]:
    """The matrix products of a dense network's round, forward and backward, all clients at once: the machine's limit."""
    net = [layer for layer in w.model() if isinstance(layer, torch.nn.Linear)]  # pyright: ignore[reportGeneralTypeIssues]
    S, B = w.cohort, w.batch
    shapes = [(layer.in_features, layer.out_features) for layer in net]
    ins = [torch.rand(S, B, n) for n, _ in shapes]
    outs = [torch.rand(S, B, m) for _, m in shapes]
    weights = [torch.rand(S, n, m) for n, m in shapes]
    grads = [torch.empty_like(v) for v in weights]
    results = [torch.empty_like(v) for v in outs]
    backs = [torch.empty_like(v) for v in ins]
    while True:
        for _ in range(w.steps):
            for j in range(len(shapes)):
                torch.bmm(ins[j], weights[j], out=results[j])
                torch.bmm(ins[j].mT, outs[j], out=grads[j])
                if j:
                    torch.bmm(outs[j], weights[j].mT, out=backs[j])
        yield None
