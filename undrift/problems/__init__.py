"""What is minimised: f(x) = sum_i p_i f_i(x), client i holding f_i.

protocols.py       what engines ask of a problem
quadratic.py       quadratics, exact or with noise          synthetic.py   Synthetic(a, b)
least_squares.py   quadratics whose samples differ
federate.py        an nn.Module on clients' data: federate checks and deals (fitting.py), model.py computes,
                   evaluation.py measures quality
heterogeneity.py   how different clients' data are
"""

from undrift.problems.protocols import Problem

__all__ = ["Problem"]
