"""pfl-research: FedAvg and SCAFFOLD with its SimulatedBackend.

Batches are slices in the order of the data, cached after the first visit, as its Dataset makes them: nothing is shuffled
or gathered.  One local epoch is w.steps batches; the last one of W4 has 52 samples in place of 64.
"""
# pyright: reportMissingImports=false

from dataclasses import replace
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate, Work, work


class Turns(TrainingProcessCallback):
    def __init__(self, gate: Gate, w: Work):
        self.gate, self.test = gate, None
        if w.evaluated:
            self.test = [t[0] for t in shared.data(replace(w, clients=1, samples=w.evaluated))]

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.test is not None:
            shared.evaluate(model.pytorch_model, *self.test)
        return not self.gate(), Metrics()


def loss(self: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(self(inputs), targets)


def model(w: Work) -> PyTorchModel:
    net: Any = shared.model(w.name).train()
    net.loss = MethodType(loss, net)
    net.metrics = MethodType(lambda self, inputs, targets: {}, net)  # never evaluated
    return PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )


def algorithm(w: Work) -> tuple[Any, Any]:
    rounds = {
        "central_num_iterations": 10**6,
        "evaluation_frequency": 10**6,  # round 0 only, which is not timed
        "train_cohort_size": w.cohort,
        "val_cohort_size": None,
    }
    if w.method == "fedavg":
        return FederatedAveraging(), NNAlgorithmParams(**rounds)
    return SCAFFOLD(), SCAFFOLDParams(
        **rounds,
        population=w.clients,
        use_gradient_as_control_variate=False,  # option II, as in the other rows
        user_state_storage=InMemoryUserStateStorage(),
    )


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    X, Y = shared.data(w)
    users = [Dataset(raw_data=[X[i], Y[i]], user_id=str(i)) for i in range(w.clients)]
    federated = FederatedDataset(users.__getitem__, get_user_sampler("random", range(w.clients)))
    method, params = algorithm(w)
    net = model(w)
    gate = Gate("pfl", shared.counted())
    method.run(
        algorithm_params=params,
        backend=SimulatedBackend(federated, val_data=federated, postprocessors=[WeightByUser()]),
        model=net,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=w.lr, local_batch_size=w.batch),
        callbacks=[Turns(gate, w)],
        send_metrics_to_platform=False,  # which prints them
    )


if __name__ == "__main__":
    main()
