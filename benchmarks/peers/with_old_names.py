"""The newest JAX with the names that fedjax 0.0.17 still calls."""
# pyright: reportMissingImports=false

import jax

jax.tree_map = jax.tree_util.tree_map
if not hasattr(jax.random, "KeyArray"):
    jax.random.KeyArray = jax.Array
