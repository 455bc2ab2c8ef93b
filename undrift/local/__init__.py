"""How clients train between two messages: steps, minibatches, step sizes, optimisers."""

from undrift.local.settings import Geometric, Local

__all__ = ["Geometric", "Local"]
