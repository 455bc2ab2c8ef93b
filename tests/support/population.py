"""A population with everything that delays or loses updates, and the methods that a buffer refuses."""

import undrift as ud

ROUGH = ud.Population(
    pace=ud.LogNormal(1.0, sigma=0.8),
    link=ud.Link(latency=0.2, down=ud.Tiers([200.0, 1000.0]), up=ud.Tiers([100.0, 500.0])),
    availability=ud.Chance(0.7, every=20.0),
    dropout=ud.Dropout(before=0.1, after=0.1),
    jitter=0.3,
)


SEVERAL_EXCHANGES = ("mime", "ce-lsgd", "bvr-l-sgd")
