"""The methods, a file a family.  To add one: write its file, and a row here."""

from undrift.algorithms.adabest import AdaBest
from undrift.algorithms.adamw import DiLoCo, FedAdamW
from undrift.algorithms.compressed import Scafcom, Scallion
from undrift.algorithms.fedadc import FedADC
from undrift.algorithms.fedavg import FedAvg, FedProx
from undrift.algorithms.fedbuff import FedAsync, FedBuff
from undrift.algorithms.feddyn import FedDyn
from undrift.algorithms.fedgm import (
    ASGD,
    PID,
    SNV,
    AutonomousFedAvg,
    AutonomousFedGM,
    FedAvgM,
    FedGM,
    FedNAG,
    MultistageFedGM,
    PIDAn,
    RobustMomentum,
    TripleMomentum,
)
from undrift.algorithms.fednova import FedNova, FedNovaVR
from undrift.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from undrift.algorithms.ghbm import GHBM, FedHBM, GHBMServer, GHBMTheory, LocalGHBM
from undrift.algorithms.mime import Mime, MimeLite, MimeLiteMVR
from undrift.algorithms.momentum import FedAvg_M, FedAvg_M_VR, FedCM, ScaffoldM, ScaffoldMVR
from undrift.algorithms.primal_dual import LED, VRLSGD, Scaffnew
from undrift.algorithms.scaffold import Scaffold
from undrift.algorithms.storm import BVRLSGD, CELSGD, STEM, MBStorm

__all__ = [
    "AdaBest", "ASGD", "AutonomousFedAvg", "AutonomousFedGM", "BVRLSGD", "CELSGD", "DiLoCo", "FedAdagrad",
    "FedAdam", "FedAdamW", "FedADC", "FedAsync", "FedAvg", "FedAvg_M", "FedAvg_M_VR", "FedAvgM", "FedBuff", "FedCM",
    "FedDyn", "FedGM", "FedHBM", "FedNAG", "FedNova", "FedNovaVR", "FedProx", "FedYogi", "GHBM", "GHBMServer",
    "GHBMTheory", "LED", "LocalGHBM", "MBStorm", "Mime", "MimeLite", "MimeLiteMVR", "MultistageFedGM", "PID",
    "PIDAn", "RobustMomentum", "Scafcom", "Scaffnew", "Scaffold", "ScaffoldM", "ScaffoldMVR", "Scallion", "SNV",
    "STEM", "TripleMomentum", "VRLSGD",
]  # fmt: skip
