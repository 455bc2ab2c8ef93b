"""placeholder"""

from undrift.experiments.config import Experiment


def show_plan(experiment: Experiment, jobs: int) -> None: ...
