"""Visits compiled whole, with TorchInductor and kernels of our own."""
