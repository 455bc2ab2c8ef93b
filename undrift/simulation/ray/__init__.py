"""The engine "ray": workers on one machine or many, each owning some of the clients and their states.  See docs/ray.md.

cluster.py         the cluster that a run uses
choice.py          how many workers, and which engine is inside each
transport.py       all workers, as a run sees them: who visits whom, and what happens when one is lost
handles.py         a worker as the run knows it        worker.py   the worker itself
serialisation.py   what travels, and how
"""
