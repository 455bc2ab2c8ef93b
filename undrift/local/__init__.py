"""How clients train between two messages: steps, minibatches, step sizes (settings.py), optimisers (optimisers.py)."""

from undrift.local.settings import Geometric, Local

__all__ = ["Geometric", "Local"]
