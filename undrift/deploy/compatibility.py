"""What the two sides tell each other in the handshake, and what must not differ."""

import json
from collections.abc import Mapping
from typing import Any

from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.toml import to_dict
from undrift.problems.flat import FlatModel
from undrift.version import __version__

# Words of an experiment that are the business of one side alone.
MAY_DIFFER = frozenset(
    "name use rounds engine threads checkpoint_every state_memory target baseline log evaluation population".split()
)


def facts_of(experiment: Experiment, flat: FlatModel) -> dict[str, Any]:
    """One side's version, experiment and model."""
    private = {"rounds"} if experiment.privacy is not None else set[str]()  # epsilon is of all of them
    words = {key: value for key, value in to_dict(experiment).items() if key not in MAY_DIFFER - private}
    parameters = [[name, list(shape)] for name, shape in zip(flat.names, flat.shapes, strict=True)]
    model = {"parameters": parameters, "dtype": str(flat.x0.dtype)}
    facts = {"undrift": __version__, "experiment": words, "model": model}
    return json.loads(json.dumps(facts))  # as they will be when they have travelled


def differences(server: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
    """What differs between the server's facts and a node's, in words.

    >>> a = {"undrift": "1", "experiment": {"local": {"lr": 0.1}}, "model": {}}
    >>> b = {"undrift": "1", "experiment": {"local": {"lr": 0.2}}, "model": {}}
    >>> differences(a, b)
    ['experiment.local.lr is 0.1 on the server and 0.2 on the node']
    """
    found = _differing("", {k: server.get(k) for k in FACTS}, {k: node.get(k) for k in FACTS})
    said = [
        f"{path} is {_short(here)} on the server and {_short(there)} on the node" for path, here, there in found[:MOST]
    ]
    return said if len(found) <= MOST else [*said, f"and {len(found) - MOST} more differences"]


FACTS = ("undrift", "experiment", "model")
MOST = 10  # differences that are told


def _differing(path: str, here: Any, there: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        return [
            found
            for key in sorted({*here, *there})
            for found in _differing(f"{path}.{key}" if path else str(key), here.get(key), there.get(key))
        ]
    return [] if here == there else [(path, here, there)]


def _short(value: Any) -> str:
    if value is None:
        return "not set"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
