"""APPFL: FedBuff in its virtual-time simulator, a round being a server step, one for every w.cohort answers.

Clients have a pace and a bandwidth of their own, drawn once; a step takes a fixed time, so that nothing depends on the clock.
`optimize_memory` is off: with it APPFL collects garbage after every answer.
"""
# pyright: reportMissingImports=false
# ruff: noqa: E402

import logging
import random
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate, Work, work

shared.torchvision_without_operators()

from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile

QUIET = logging.getLogger("quiet")
QUIET.setLevel(logging.ERROR)


def net(name: str) -> torch.nn.Module:
    """What APPFL loads by the name of this file."""
    return shared.model(name)


def accuracy(right: Any, scores: Any) -> float:
    """Likewise; APPFL's trainer asks for it in every visit."""
    return float((scores.argmax(1) == right).mean())


class Driver(AsyncSimDriver):
    gate: Gate
    cohort: int
    wanted = True

    def _training_finished(self) -> bool:
        return not self.wanted

    def _handle_train_complete(self, cid: str, completion_time: float) -> None:
        super()._handle_train_complete(cid, completion_time)
        self.history.clear()  # which nobody reads
        if self._cur_epoch() % self.cohort == 0:
            self.wanted = self.gate()


def settings(w: Work) -> dict[str, Any]:
    trainer = {
        "mode": "step", "num_local_steps": w.steps, "optim": "SGD", "optim_args": {"lr": w.lr}, "do_validation": False,
        "loss_fn": "CrossEntropyLoss", "train_batch_size": w.batch, "optimize_memory": False,
        "metric_path": __file__, "metric_name": "accuracy",
    }  # fmt: skip
    return {
        "optimize_memory": False,
        "model_configs": {"model_path": __file__, "model_name": "net", "model_kwargs": {"name": w.name}},
        "algorithm_configs": {
            "num_global_epochs": 10**9,
            "trainer": "VanillaTrainer",
            "trainer_kwargs": trainer,
            "scheduler": "AsyncScheduler",
            "scheduler_kwargs": {"num_clients": w.clients, "optimize_memory": False},
            "aggregator": "FedBuffAggregator",
            "aggregator_kwargs": {
                "K": w.cohort, "alpha": 1.0, "num_clients": w.cohort, "staleness_fn": "polynomial",
                "staleness_fn_kwargs": {"a": 0.5}, "optimize_memory": False,
            },
        },
    }  # fmt: skip


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    X, Y = shared.data(w)
    described = settings(w)
    server = SimServerAgent(described, num_clients=w.clients)
    clients = [
        SimClientAgent(described, client_id=str(i), client_dataset=TensorDataset(X[i], Y[i])) for i in range(w.clients)
    ]
    for agent in (server, *clients):  # the simulator's configuration does not reach them
        agent.optimize_memory = False
    draw = random.Random(0)
    profiles = {str(i): ClientProfile(draw.lognormvariate(0, 0.5), 100.0) for i in range(w.clients)}
    driver = Driver(server, clients, profiles, max_in_flight=2 * w.cohort, logger=QUIET, base_step_time=0.1)
    seen, ahead = shared.counted(), (2 * w.cohort - 1) * w.samples  # what is still in flight after the first step
    driver.cohort, driver.gate = w.cohort, Gate("appfl", lambda: seen() - ahead)
    driver.run()


if __name__ == "__main__":
    main()
