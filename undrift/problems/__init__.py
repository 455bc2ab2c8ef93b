"""What is minimised: f(x) = sum_i p_i f_i(x), client i holding f_i."""

from undrift.problems.protocols import Problem

__all__ = ["Problem"]
