"""The initialisation round: before round 1, all clients are sent x0 and return the mean of B minibatch gradients there.

A method that wants it defines `begin(server, mean, cohort)` and `initialise(down, client, work)`, which is `first_gradient`
if its clients keep nothing.
"""

from typing import Any

from undrift.algorithms.fedavg import Down
from undrift.core import Exchange, Vec, Work, record, usual
from undrift.core.records import map_tensors


@record
class Gradient:
    g: Vec


def mean_gradient(x: Vec, B: int, work: Work) -> Vec:
    """The mean of B minibatch gradients at x."""
    return work.loop(lambda total: total + work.grad(x), 0 * x, steps=B) / B


def send_x0(server: Any) -> Down:
    return Down(server.x)


def first_gradient(self: Any, down: Down, client: None, work: Work) -> tuple[Gradient, None]:
    return Gradient(mean_gradient(down.x, self.B, work)), None


def settle(client: Any, missed: Gradient) -> Any:
    """A client that keeps its gradient keeps what has arrived of it."""
    return map_tensors(lambda c: c + missed.g, client)


def with_initialisation(algorithm: Any, t: int) -> tuple[Exchange, ...]:
    """The exchanges of a method with one exchange a round, after an initialisation round if its B is positive."""
    if t > 0:
        return (usual(algorithm),)
    first = Exchange(send_x0, algorithm.initialise, algorithm.begin, to="everyone", settle=settle)
    return (first,) if algorithm.B > 0 else ()
