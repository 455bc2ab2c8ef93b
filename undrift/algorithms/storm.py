"""Variance-reduced rivals: MB-STORM, CE-LSGD, BVR-L-SGD, STEM.

MB-STORM and CE-LSGD: Patel, Wang, Woodworth, Bullins, Srebro, NeurIPS 2022.  BVR-L-SGD: Murata & Suzuki, ICML 2021.
STEM: Khanduri, Sharma, Yang, Hong, Liu, Rajawat, Varshney, NeurIPS 2021.  (Our reading of all four: the texts are not
among our sources and no public code was found.)

    v  <- mean_i mean_k grad F_i(x; xi_k) + (1 - beta)(v - mean_i mean_k grad F_i(x-; xi_k))        MB-STORM, CE-LSGD
          grad f(x) every `period` rounds, otherwise as above with beta = 0                         BVR-L-SGD
    x  <- x - gamma v                                                                               MB-STORM
    x  <- w after K steps of one client, drawn at random, from w = w- = x:                          CE-LSGD, BVR-L-SGD
          v <- v + grad F_i(w; xi) - grad F_i(w-; xi),   w <- w - eta v
    STEM: y+ = y - eta d,  d <- grad F_i(y+; xi) + (1 - a)(d - grad F_i(y; xi))    K times;  both averaged

K minibatches are used at x and at x-, the model a round ago.  v and d start from B minibatches at x0 of all clients;
gamma defaults to server_lr eta K.  STEM's paper lets a fall with eta^2: here eta is constant in a round, and so is a.
"""

from undrift.algorithms.fedavg import stateless
from undrift.algorithms.initialisation import Gradient, first_gradient, with_initialisation
from undrift.algorithms.momentum import gamma_of, one_server_step
from undrift.core import Cohort, Exchange, Vec, Work, algorithm, hyper, record

PATEL = "Patel et al. 2022"


@record
class Server:
    x: Vec
    past: Vec
    v: Vec


@record
class Down:
    x: Vec
    past: Vec


@record
class Up:
    v: Vec


@record
class Walk:
    x: Vec
    v: Vec


@record
class Model:
    x: Vec


def start(self: object, x: Vec) -> Server:
    return Server(x, past=x, v=0 * x)


def direction(self: object, server: Server) -> Vec:
    return server.v


def send_both(self: object, server: Server) -> Down:
    return Down(server.x, server.past)


def difference(down: Down, beta: float, work: Work) -> Vec:
    """mean_k grad F(x; xi_k) - (1 - beta) grad F(x-; xi_k)"""

    def step(total: Vec) -> Vec:
        return total + work.grad(down.x) - (1 - beta) * work.grad(down.past)

    return work.loop(step, 0 * down.x) / work.K


def begin_v(self: object, server: Server, mean: Gradient, cohort: Cohort) -> Server:
    return Server(server.x, server.past, mean.g)


# The walk of one client, which CE-LSGD and BVR-L-SGD share.


def send_walk(server: Server) -> Walk:
    return Walk(server.x, server.v)


def walk(down: Walk, client: None, work: Work) -> tuple[Model, None]:
    def step(w: Vec, past: Vec, v: Vec) -> tuple[Vec, Vec, Vec]:
        v = v + work.grad(w) - work.grad(past)
        return w - work.lr * v, w, v

    return Model(work.loop(step, down.x, down.x, down.v)[0]), None


def arrive(server: Server, mean: Model, cohort: Cohort) -> Server:
    return Server(mean.x, past=server.x, v=server.v)


one_walks = Exchange(send_walk, walk, arrive, to="one")


@algorithm("mb-storm", PATEL, local_models=False, reading=True)
class MBStorm:
    """No local steps at all: one variance-reduced step of the server on many minibatches."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    gamma: float | None = hyper(default=None, within="[0, inf)")
    B: int = hyper(default=1, within="[0, inf)")
    server_lr: float = hyper(default=1.0, within="[0, inf)")

    __post_init__ = one_server_step
    server, client, send, initialise, begin = start, stateless, send_both, first_gradient, begin_v
    exchanges, direction = with_initialisation, direction

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        return Up(difference(down, self.beta, work)), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        v = mean.v + (1 - self.beta) * server.v
        return Server(server.x - gamma_of(self, cohort) * v, past=server.x, v=v)


@algorithm("ce-lsgd", PATEL, local_models=False, reading=True)
class CELSGD:
    """MB-STORM's direction, then a walk of one random client along it."""

    beta: float = hyper(default=0.1, within="(0, 1]")
    B: int = hyper(default=1, within="[0, inf)")

    server, client, send, initialise, begin = start, stateless, send_both, first_gradient, begin_v
    direction = direction

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        usual = with_initialisation(self, t)
        return (*usual, one_walks) if t > 0 else usual

    local = MBStorm.local

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return Server(server.x, server.past, v=mean.v + (1 - self.beta) * server.v)


@algorithm("bvr-l-sgd", "Murata & Suzuki 2021", local_models=False, reading=True)
class BVRLSGD:
    """A full gradient now and then, differences in between, and a walk of one random client."""

    period: int = hyper(default=10, within="[1, inf)")

    server, client, send, direction = start, stateless, send_both, direction

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        if t == 0:
            return ()
        if (t - 1) % self.period == 0:
            return Exchange(self.send_x, self.full, self.restart, "everyone"), one_walks
        return Exchange(self.send, self.local, self.update), one_walks

    def send_x(self, server: Server) -> Model:
        return Model(server.x)

    def full(self, down: Model, client: None, work: Work) -> tuple[Up, None]:
        return Up(work.full_grad(down.x)), None

    def restart(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return Server(server.x, server.past, mean.v)

    def local(self, down: Down, client: None, work: Work) -> tuple[Up, None]:
        return Up(difference(down, 0.0, work)), None

    def update(self, server: Server, mean: Up, cohort: Cohort) -> Server:
        return Server(server.x, server.past, v=mean.v + server.v)


@record
class StemServer:
    x: Vec
    d: Vec


@algorithm("stem", "Khanduri et al. 2021", reading=True)
class STEM:
    """STORM on every client at every step; models and directions are averaged."""

    a: float = hyper(default=0.1, within="[0, 1]")
    B: int = hyper(default=1, within="[0, inf)")

    client, exchanges, initialise = stateless, with_initialisation, first_gradient

    def server(self, x: Vec) -> StemServer:
        return StemServer(x, d=0 * x)

    def begin(self, server: StemServer, mean: Gradient, cohort: Cohort) -> StemServer:
        return StemServer(server.x, d=mean.g)

    def send(self, server: StemServer) -> StemServer:
        return server

    def local(self, down: StemServer, client: None, work: Work) -> tuple[StemServer, None]:
        def step(y: Vec, d: Vec) -> tuple[Vec, Vec]:
            new = y - work.lr * d
            return new, work.grad(new) + (1 - self.a) * (d - work.grad(y))

        return StemServer(*work.loop(step, down.x, down.d)), None

    def update(self, server: StemServer, mean: StemServer, cohort: Cohort) -> StemServer:
        return mean
