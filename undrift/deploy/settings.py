"""How a deployed run is held together: the settings of its server."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value
from undrift.deploy.checks import NAME


@dataclass(frozen=True)
class Deployment:
    """The words of `[tool.flwr.app.config]`, with dashes for underscores.

    run_dir       where the server keeps the run; a run that is there is resumed
    clients       the nodes' names, separated by commas; empty: the first so many that the experiment has clients
    wait          seconds to wait for all of them in the handshake
    again         seconds after which a request that nobody answered is sent once more
    named_keys    only nodes whose key is registered with the client's name
    norm_bound    the largest norm of an answer (updates and states), all its vectors together; 0: no bound
    most_samples  the largest number of samples that a node may report
    bad_replies   after so many a node is shut out for the rest of the run
    lost_states   likewise after so many losses of its state
    poll          seconds between looks for answers

    >>> Deployment.of({"run-dir": "runs/a", "clients": "b, a", "wait": 5}).names
    ('a', 'b')
    """

    run_dir: str
    clients: str = ""
    wait: float = 600.0
    again: float = 300.0
    named_keys: bool = False
    norm_bound: float = 0.0
    most_samples: int = 10**9
    bad_replies: int = 3
    lost_states: int = 10
    poll: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.run_dir, str) or not self.run_dir:
            raise InvalidInput(f"run-dir must be a path such as 'runs/mine', got {self.run_dir!r}")
        for name in ("wait", "again", "poll"):
            check_value("deployment", name, vars(self)[name], float, within="(0, inf)")
        check_value("deployment", "norm-bound", self.norm_bound, float, within="[0, inf)")
        for name in ("most_samples", "bad_replies", "lost_states"):
            check_value("deployment", name.replace("_", "-"), vars(self)[name], int, within="[1, inf)")
        if not isinstance(self.named_keys, bool):
            raise InvalidInput(f"named-keys must be true or false, got {self.named_keys!r}")
        if not isinstance(self.clients, str):
            raise InvalidInput(f"clients must be names such as 'a,b', got {self.clients!r}")
        names = [name.strip() for name in self.clients.split(",")] if self.clients else []
        if len(set(names)) < len(names) or "" in names:
            raise InvalidInput(f"clients must be different names, got {self.clients!r}")
        for name in names:
            if not NAME.fullmatch(name):
                raise InvalidInput(f"clients: a name has at most 64 letters, digits and _.@-, got {name!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of clients' numbers."""
        return tuple(sorted(name.strip() for name in self.clients.split(",") if name.strip()))

    @staticmethod
    def of(words: Mapping[str, Any]) -> "Deployment":
        """From a run's configuration."""
        known = {f.name.replace("_", "-"): f.name for f in fields(Deployment)}
        for word in words:
            if word not in known:
                raise unknown("setting of the deployment:", word, known)
        if "run-dir" not in words:
            raise InvalidInput("the deployment needs run-dir, where the server keeps the run")
        return Deployment(**{known[word]: value for word, value in words.items()})
