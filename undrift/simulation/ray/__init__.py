"""The engine "ray": workers on one machine or many, each owning some of the clients and what they remember.

    cluster.py   the cluster that a run uses           wire.py     what travels, and how
    choice.py    how many workers, and what is inside  worker.py   one worker
    crew.py      all workers, as a run sees them: who visits whom, and what happens when one is lost

See docs/ray.md.
"""
