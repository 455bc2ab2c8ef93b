"""Passes over traced graphs and kernels in C++, each of which makes compiled visits faster and none of which is needed."""
