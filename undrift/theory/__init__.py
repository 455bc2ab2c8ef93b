"""What the five papers prescribe and predict: step sizes, limits, rates and constants, as functions.

A file a paper.  Step sizes: `fedavg_m`, `fedavg_m_vr`, `scaffold_m`, `scaffold_m_vr`, `fedgm`, `autonomous_fedgm`,
`scaffold_everyone`, `scaffold`, `fednova`, `fedprox`, `ghbm`; each checks its theorem's conditions and gives a `Prescription`
with `.method()` and `.local()` for a run and `.bound(rounds)` to draw beside it.  `estimate` measures the constants they ask
for.
"""

from undrift.theory.cheng import (
    fedavg_m,
    fedavg_m_rate,
    fedavg_m_vr,
    fedavg_m_vr_rate,
    momentum_error_floor,
    scaffold_m,
    scaffold_m_rate,
    scaffold_m_vr,
    scaffold_m_vr_rate,
)
from undrift.theory.estimate import Constants, estimate
from undrift.theory.fedgm import (
    autonomous_fedgm,
    autonomous_fedgm_rate,
    fedgm,
    fedgm_rate,
    largest_server_step,
    server_step_gain,
)
from undrift.theory.fednova import (
    NovaConstants,
    accumulation,
    chi2,
    fedavg_limit,
    fednova,
    fednova_limit,
    fednova_rate,
    fedprox,
    fedprox_rate,
    inconsistency_bound,
    largest_lr,
    nova_constants,
)
from undrift.theory.ghbm import ghbm, ghbm_largest_step, ghbm_rate, missed_clients, missed_clients_squared
from undrift.theory.prescription import Prescription
from undrift.theory.scaffold import (
    scaffold,
    scaffold_everyone,
    scaffold_everyone_rate,
    scaffold_lyapunov,
    scaffold_rate,
)

__all__ = [
    "accumulation", "autonomous_fedgm", "autonomous_fedgm_rate", "chi2", "Constants", "estimate", "fedavg_limit",
    "fedavg_m", "fedavg_m_rate", "fedavg_m_vr", "fedavg_m_vr_rate", "fedgm", "fedgm_rate", "fednova",
    "fednova_limit", "fednova_rate", "fedprox", "fedprox_rate", "ghbm", "ghbm_largest_step", "ghbm_rate",
    "inconsistency_bound", "largest_lr", "largest_server_step", "missed_clients", "missed_clients_squared",
    "momentum_error_floor", "nova_constants", "NovaConstants", "Prescription", "scaffold", "scaffold_everyone",
    "scaffold_everyone_rate", "scaffold_lyapunov", "scaffold_m", "scaffold_m_rate", "scaffold_m_vr",
    "scaffold_m_vr_rate", "scaffold_rate", "server_step_gain",
]  # fmt: skip
