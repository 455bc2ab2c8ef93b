"""FCUBE of NIID-Bench: points of a cube, the class is the sign of the first coordinate, and each client has two opposite octants."""

import torch

import undrift as ud

CLIENTS, EACH, TEST = 4, 900, 1000  # a client of the tables has 1000 points, of which it trains on nine tenths


@ud.dataset("fcube", about="generated, as NIID-Bench does", clients=CLIENTS)
def fcube() -> ud.Data:
    """3,600 points to train and 1,000 to test, float32 [3]; drawn once, with a fixed seed."""
    random = torch.Generator().manual_seed(0)
    client = torch.arange(CLIENTS).repeat_interleave(EACH)
    signs = torch.stack([torch.ones(len(client)), 1.0 - 2 * (client > 1), 1.0 - 2 * (client % 2)], 1)
    side = 1.0 - 2 * (torch.arange(len(client)) % 2)  # half of a client's points are in each of its two octants
    X = torch.rand(len(client), 3, generator=random) * signs * side[:, None]
    test = 2 * torch.rand(TEST, 3, generator=random) - 1
    return ud.Data(
        "fcube",
        train=(X, (X[:, 0] > 0).long()),
        test=(test, (test[:, 0] > 0).long()),
        classes=2,
        clients=client,
        client_names=[f"client {number}" for number in range(CLIENTS)],
    )
