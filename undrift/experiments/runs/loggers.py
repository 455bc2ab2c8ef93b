"""The metrics of a run in other people's tools: TensorBoard, Weights & Biases, MLflow."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from undrift.core.errors import InvalidInput
from undrift.experiments.runs.directory import metrics_of, sent_before
from undrift.simulation.results import Round


class Log(Protocol):
    """Where metrics go."""

    def add(self, round: int, values: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's directory: `tensorboard --logdir RUNS`."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]):
        self._writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def add(self, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of project "undrift"; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]):
        wandb, kept = _module("wandb", "wandb"), folder / "wandb.id"
        if not kept.exists():
            kept.write_text(uuid4().hex[:12])
        self._run = wandb.init(  # a resumed run is the same run there
            project="undrift", name=name, dir=str(folder), config=config, id=kept.read_text(), resume="allow"
        )

    def add(self, round: int, values: dict[str, float]) -> None:
        self._run.log(values, step=round)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of experiment "undrift" where MLFLOW_TRACKING_URI says, in the run's directory otherwise."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]):
        self._mlflow = _module("mlflow", "mlflow")
        if not self._mlflow.is_tracking_uri_set():
            self._mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        self._mlflow.set_experiment("undrift")
        kept = folder / "mlflow.id"
        before = kept.read_text() if kept.exists() else None
        if before is not None and not self._known(before):  # of another place
            before = None
        run = self._mlflow.start_run(run_id=before, run_name=name)
        kept.write_text(run.info.run_id)
        self._mlflow.log_params(config)

    def _known(self, run: str) -> bool:
        try:
            self._mlflow.get_run(run)
        except self._mlflow.exceptions.MlflowException:
            return False
        return True

    def add(self, round: int, values: dict[str, float]) -> None:
        self._mlflow.log_metrics(values, step=round)

    def close(self) -> None:
        self._mlflow.end_run()


LOGS: dict[str, Callable[[Path, str, dict[str, Any]], Log]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}


class Logs:
    """Some of them together, or none; `sent` is how many bytes have been, down and up, once there was a round."""

    def __init__(self, names: Sequence[str], folder: Path, name: str, config: dict[str, Any]):
        self._logs = [LOGS[each](folder, name, config) for each in names]
        self._folder = folder
        self.sent: int | None = None

    def add(self, r: Round) -> None:
        if self.sent is None:  # a resumed run has sent some before
            self.sent = sent_before(self._folder, r.round)
        self.sent += r.bytes_down + r.bytes_up
        values = {k: v for k, v in metrics_of(r).items() if v is not None}
        for log in self._logs:
            log.add(r.round, {**values, "bytes_sent": self.sent, "seconds_a_round": r.seconds})

    def close(self) -> None:
        for log in self._logs:
            log.close()


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidInput(f'log = ["{extra}"] needs pip install "undrift[{extra}]" ({error})') from error
