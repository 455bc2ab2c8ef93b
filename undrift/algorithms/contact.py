"""The initialisation round: before round 1, all clients are sent x0 and answer with the mean of B minibatch gradients there.

A method that wants it defines `begin(server, mean, cohort)`, and `contact(down, client, work)` if its clients keep the
answer.
"""

from typing import Any

from undrift.core import Exchange, Vec, Work, record, usual
from undrift.core.records import map_tensors


@record
class Hello:
    x: Vec


@record
class Answer:
    g: Vec


def mean_gradient(x: Vec, B: int, work: Work) -> Vec:
    """The mean of B minibatch gradients at x."""
    return work.loop(lambda total: total + work.grad(x), 0 * x, steps=B) / B


def send_hello(server: Any) -> Hello:
    return Hello(server.x)


def answer(self: Any, down: Hello, client: None, work: Work) -> tuple[Answer, None]:
    """The `contact` of a method whose clients keep nothing."""
    return Answer(mean_gradient(down.x, self.B, work)), None


def settle_answer(client: Any, missed: Answer) -> Any:
    """A client that keeps its answer keeps what has arrived of it."""
    return map_tensors(lambda c: c + missed.g, client)


def after_contact(algorithm: Any, t: int) -> tuple[Exchange, ...]:
    """The exchanges of a method with one exchange a round, after an initialisation round if its B is positive."""
    if t > 0:
        return (usual(algorithm),)
    hello = Exchange(send_hello, algorithm.contact, algorithm.begin, to="everyone", settle=settle_answer)
    return (hello,) if algorithm.B > 0 else ()
