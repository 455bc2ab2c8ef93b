"""Spaces by name: the papers' own grids in our letters, and three for a first look.

ghbm-lenet, ghbm-resnet20, ghbm-shakespeare, ghbm-stackoverflow: Zaccone et al. 2025, Table 7, its four columns.  In it
eta is the server's step, 1 being plain averaging, and eta_l the local one:

    eta_l, wd     local.lr, local.weight_decay
    eta           server_lr of FedAvg, FedProx, Mime, FedCM; eta_g of SCAFFOLD; eta of GHBM, FedHBM.  Ours of FedDyn and
                  AdaBest have no such step, as in their papers: it is 1, which the table found best for both.
    FedAvgM       momentum undampened as PyTorch's (their best eta, 0.1 with beta = 0.9, is 1 dampened):
                  dampened = false, eta and beta as printed
    MimeMom       mime with opt = "sgdm".  Theirs is undampened, U = g + beta m; ours is the paper's,
                  (1 - beta) g + beta m: the same with local.lr = eta_l / (1 - beta), so "lr (1 - beta)" = eta_l
    MimeLiteMom   mimelite with opt = "sgdm", likewise
    FedCM         alpha as printed
    GHBM, FedHBM  beta as printed: it multiplies the momentum
    AdaBest       the table's alpha is mu; beta is not in it and stays what the experiment says
    FedProx       mu as printed, the whole factor of (y - x)

ghbm-mobilenet, ghbm-inaturalist, ghbm-vit: the grids of its appendix C.4 for large images, with E = 5 local epochs; the
second is wider for SCAFFOLD and MimeMom, as there.  Momenta are not in them and stay what the experiment says.

The batch size, one value a column, is not chosen: set local.batch = 64, 64, 100, 16.

momentum: Cheng et al. 2024, appendix D: eta x beta with gamma = eta K, weight decay 1e-4; beta weighs the fresh gradient.
fedgm: Sun et al. 2024, section 6.1: eta, beta (dampened), nu; the local step size is not in it and stays as it is.  FedAvg
is given the same server steps (there FedSGD).
fednova: Wang et al. 2020, appendix I: eta for every method, mu for proximal local solvers; 0 is FedNova's plain one.
quick, choose, search: two small grids and a wide range of lr and the method's momentum, for any method.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from undrift.core.errors import setting, unknown
from undrift.experiments.sweeps.space import UNDAMPENED, Candidates, Range, Space, SpaceRow, read_space

# Table 7 as it is printed: a row a method and parameter, a column a data set and model.

THREE, TWO, FOUR = (1.0, 0.5, 0.1), (1.0, 0.1), (1.0, 0.5, 0.3, 0.1)
SMALL, SMALL_TWO = (0.1, 0.05, 0.01), (0.1, 0.01)
STEPS = (THREE, TWO, THREE, THREE)  # eta of most methods
LOCAL = (SMALL, SMALL_TWO, THREE, FOUR)  # eta_l of most methods
ALPHA = ((0.1, 0.01, 0.001), (0.1, 0.01, 0.001), (0.1, 0.009, 0.001), (0.1, 0.009, 0.001))
MOM_STEPS = (THREE, FOUR, THREE, THREE)
MOM_LOCAL = (SMALL, (0.1, 0.05, 0.03, 0.01), THREE, FOUR)
TAU = ((5, 10, 20, 40),) * 4

ZACCONE_COLUMNS = {
    "ghbm-lenet": "CIFAR with LeNet; batch 64",
    "ghbm-resnet20": "CIFAR with ResNet-20; batch 64",
    "ghbm-shakespeare": "Shakespeare; batch 100",
    "ghbm-stackoverflow": "Stack Overflow; batch 16",
}
DECAY: tuple[Candidates, ...] = (
    (0.001, 0.0008, 0.0004),
    (0.0001, 0.00001),
    (0.0, 0.0001, 0.00001),
    (0.0, 0.0001, 0.00001),
)
TABLE_7: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedavg": {"server_lr": STEPS, "local.lr": LOCAL},
    "fedprox": {
        "server_lr": STEPS,
        "local.lr": LOCAL,
        "mu": ((0.1, 0.01, 0.001), (0.1, 0.01, 0.001), (0.1, 0.01, 0.001, 0.0001), (0.1, 0.01, 0.001, 0.0001)),
    },
    "scaffold": {"eta_g": STEPS, "local.lr": LOCAL},
    "feddyn": {"local.lr": LOCAL, "alpha": ALPHA},
    "adabest": {"local.lr": (SMALL, SMALL, THREE, FOUR), "mu": ALPHA},
    "mime": {"server_lr": STEPS, "local.lr": LOCAL},
    "fedavgm": {"eta": STEPS, "local.lr": LOCAL, "beta": ((0.99, 0.9),) * 4, "dampened": ((False,),) * 4},
    "mime opt=sgdm": {
        "server_lr": MOM_STEPS,
        UNDAMPENED: MOM_LOCAL,
        "beta": ((0.99, 0.95, 0.9), (0.99, 0.95, 0.9), (0.99, 0.9), (0.99, 0.9)),
    },
    "mimelite opt=sgdm": {
        "server_lr": MOM_STEPS,
        UNDAMPENED: MOM_LOCAL,
        "beta": ((0.99, 0.9), (0.99, 0.95, 0.9), (0.99, 0.9), (0.99, 0.9)),
    },
    "fedcm": {
        "server_lr": (THREE, THREE, THREE, None),
        "local.lr": (THREE, THREE, THREE, None),
        "alpha": ((0.05, 0.1, 0.5), (0.05, 0.1, 0.5), (0.05, 0.1, 0.5), None),
    },
    "ghbm": {"eta": STEPS, "local.lr": (THREE, THREE, THREE, FOUR), "beta": ((0.9,),) * 4, "tau": TAU},
    "fedhbm": {"eta": STEPS, "local.lr": LOCAL, "beta": ((1.0, 0.99, 0.9),) * 4},
}


def _row(name: str, choices: dict[str, Any]) -> SpaceRow:
    """A row of "mime opt=sgdm" is of mime, when its opt is sgdm."""
    method, _, word = name.partition(" ")
    key, _, value = word.partition("=")
    return SpaceRow(method, choices, {key: value} if word else {})


def _rows(table: dict[str, dict[str, Any]]) -> tuple[SpaceRow, ...]:
    return tuple(_row(name, choices) for name, choices in table.items())


def _column(number: int, name: str) -> Space:
    """A column of Table 7; every method has weight decay, and FedAvg's local steps if it has no row."""
    rows = {
        method: {path: columns[number] for path, columns in choices.items()}
        for method, choices in TABLE_7.items()
        if all(columns[number] is not None for columns in choices.values())
    }
    common = {"local.lr": LOCAL[number], "local.weight_decay": DECAY[number]}
    about = f"Zaccone et al. 2025, Table 7: {ZACCONE_COLUMNS[name]}"
    return Space(name, about, common, _rows(rows))


def _large_images(name: str, about: str, eta_l: tuple[float, ...], wide: bool = False) -> Space:
    """A grid of C.4: the server's step times the local one, for the methods that are compared there."""
    roots = 10**-1.5, 10**-0.5  # half powers of ten
    steps = (roots[0], 0.1, roots[1], 1.0) if wide else (0.1, 1.0)
    local = (0.01, roots[0], 0.1, roots[1]) if wide else eta_l
    rows = {
        "fedavg": {"server_lr": (0.1, 1.0)},
        "fedavgm": {"eta": (0.1, 1.0), "dampened": (False,)},
        "scaffold": {"eta_g": steps, "local.lr": local},
        "mime opt=sgdm": {"server_lr": steps, UNDAMPENED: local},
        "ghbm": {"eta": (0.1, 1.0)},
        "fedhbm": {"eta": (0.1, 1.0)},
    }
    common = {"local.lr": eta_l, "local.epochs": (5,)}
    return Space(name, f"Zaccone et al. 2025, C.4: {about}", common, _rows(rows))


BETA = {"beta": (0.1, 0.2, 0.5, 0.8)}
MOMENTUM = Space(
    "momentum",
    "Cheng et al. 2024, appendix D.1",
    common={"local.lr": (0.005, 0.01, 0.05, 0.1, 0.5), "local.weight_decay": (1e-4,)},
    rows=_rows(
        {name: BETA for name in ("fedavg-m", "scaffold-m", "fedavg-m-vr", "scaffold-m-vr", "mb-storm", "ce-lsgd")}
        | {"fedcm": {"alpha": BETA["beta"]}}
    ),
)

SERVER_LRS = tuple(0.5 * k for k in range(1, 11))  # 0.5, 1.0, ..., 5.0
DAMPED = (0.7, 0.9, 0.95)
FEDGM = Space(
    "fedgm",
    "Sun et al. 2024, section 6.1; local.lr stays as it is",
    rows=_rows(
        {
            "fedavg": {"server_lr": SERVER_LRS},
            "fedavgm": {"eta": SERVER_LRS, "beta": DAMPED, "dampened": (True,)},
            "fednag": {"eta": SERVER_LRS, "beta": DAMPED, "dampened": (True,)},
            "fedgm": {"eta": SERVER_LRS, "beta": DAMPED, "nu": DAMPED},
        }
    ),
)

MU = (0.0005, 0.001, 0.005, 0.01)
FEDNOVA = Space(
    "fednova",
    "Wang et al. 2020, appendix I",
    common={"local.lr": (0.005, 0.01, 0.02, 0.05, 0.08)},
    rows=_rows({"fedprox": {"mu": MU}, "fednova": {"mu": (0.0, *MU)}}),
)

# What is a method's own in the spaces for any method: methods, the parameter, and its values in quick and in search.
FRESH, FRESH_RANGE = (0.1, 0.2, 0.5), Range(0.02, 1.0, log=True)  # weight of the fresh gradient
KEPT, KEPT_RANGE = (0.5, 0.9, 0.95), Range(0.3, 0.99)  # of the old average
WINDOW, WINDOW_RANGE = (5, 10, 20), Range(2, 40, log=True, whole=True)  # in rounds
OWN: tuple[tuple[str, str, Candidates, Candidates], ...] = (
    ("fedavg-m scaffold-m fedavg-m-vr scaffold-m-vr mb-storm ce-lsgd", "beta", FRESH, FRESH_RANGE),
    ("fedgm fedavgm fednag mime:opt=sgdm mimelite:opt=sgdm adabest", "beta", KEPT, KEPT_RANGE),
    ("ghbm ghbm-server ghbm-theory", "tau", WINDOW, WINDOW_RANGE),
    ("local-ghbm fedhbm", "beta", (0.5, 0.9, 1.0), Range(0.3, 1.0)),
    ("fedadam fedyogi fedadagrad", "eta", (0.01, 0.03, 0.1), Range(0.001, 1.0, log=True)),
    ("fedcm", "alpha", FRESH, FRESH_RANGE),
    ("stem", "a", FRESH, FRESH_RANGE),
    ("fedprox", "mu", (0.001, 0.01, 0.1), Range(0.0001, 1.0, log=True)),
    ("feddyn", "alpha", (0.01, 0.1, 1.0), Range(0.001, 1.0, log=True)),
)


def _own(search: bool) -> tuple[SpaceRow, ...]:
    each = ((name, key, wide if search else few) for names, key, few, wide in OWN for name in names.split())
    return tuple(_row(name.replace(":", " "), {key: values}) for name, key, values in each)


LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
QUICK = Space("quick", "a first look: local.lr, and the method's own momentum", {"local.lr": LRS}, _own(search=False))
CHOOSE = replace(
    QUICK, name="choose", about="what `undrift choose` tries: quick with larger steps", common={"local.lr": (*LRS, 3.0)}
)
SEARCH = Space(
    "search",
    "wide ranges of local.lr and the method's own momentum, for random and tpe",
    {"local.lr": Range(0.001, 3.0, log=True)},
    _own(search=True),
)

SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        *(_column(number, name) for number, name in enumerate(ZACCONE_COLUMNS)),
        _large_images("ghbm-mobilenet", "MobileNetV2 on GLDv2", (0.01, 0.1)),
        _large_images("ghbm-inaturalist", "MobileNetV2 on iNaturalist", (0.01, 0.1), wide=True),
        _large_images("ghbm-vit", "ViT-B/16", (0.03, 0.01)),
        *(MOMENTUM, FEDGM, FEDNOVA, QUICK, CHOOSE, SEARCH),
    )
}


def space_of(name: str) -> Space:
    """A space by its name, or from a TOML file.

    >>> space_of("momentum").common["local.lr"]
    (0.005, 0.01, 0.05, 0.1, 0.5)
    """
    if name in SPACES:
        return SPACES[name]
    if name.endswith(".toml"):
        return read_space(Path(name))
    raise unknown(setting("space", space=...), name, SPACES)
