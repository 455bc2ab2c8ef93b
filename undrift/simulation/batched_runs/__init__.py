"""Many runs as one computation: what differs between them (seeds, step sizes, other floats) is one more dimension.

The server's records of R runs are `[R, D]`, floats that differ are batched scalars (core/batched_scalar.py), so a method's
`send` and `update` are called once for all runs, and `local` once for all clients of all runs.  Runs of one seed have the
same cohorts and minibatches, which are drawn and gathered once.

A run that needs special care continues alone from its last good round: one in which a client's answer or the server's
state is not finite; and all of them, if the method turns out not to treat rows apart.
"""

from undrift.simulation.batched_runs.runs import rounds_together, run_together
from undrift.simulation.batched_runs.trials import Played, Trial, to_the_end

__all__ = ["Played", "Trial", "rounds_together", "run_together", "to_the_end"]
