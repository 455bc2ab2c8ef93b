"""What methods are written with: records, exchanges, hyper-parameters, and the work of a client's visit.

algorithm.py       the five functions of a method, Exchange, Cohort: read this first
work.py            minibatches, gradients and the local loop of a visit      optimiser.py   client optimisers
records.py         states and messages as trees of tensors                   hyper.py       methods by name
rng.py             keyed randomness                                          errors.py      what can go wrong
batched_scalar.py  numbers that differ between batched runs
"""

from undrift.core.algorithm import Algorithm, Cohort, Col, Exchange, Vec, exchanges_of, usual
from undrift.core.errors import InvalidInput
from undrift.core.hyper import algorithm, check_value, hyper, special_case
from undrift.core.records import nbytes, record
from undrift.core.work import Work

__all__ = [
    "Algorithm", "algorithm", "check_value", "Cohort", "Col", "Exchange", "exchanges_of", "hyper", "InvalidInput",
    "nbytes", "record", "special_case", "usual", "Vec", "Work",
]  # fmt: skip
