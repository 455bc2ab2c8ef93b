"""pfl-research, the whole experiment: FedAvg with its SimulatedBackend and its CentralEvaluationCallback every round."""
# pyright: reportMissingImports=false

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import shared
from benchmarks.peers.whole import BATCH, COHORT, LR, federations, rounds


def loss(self: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(self(inputs), targets)


def metrics(self: Any, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    self.eval()
    with torch.no_grad():
        out = self(inputs)
    right = int((out.argmax(1) == targets).sum())
    total = float(F.cross_entropy(out, targets, reduction="sum"))
    return {"loss": Weighted(total, len(targets)), "accuracy": Weighted(right, len(targets))}


def main() -> None:
    for f in federations():
        users = [
            Dataset(raw_data=[torch.from_numpy(X), torch.from_numpy(Y)], user_id=str(i))
            for i, (X, Y) in enumerate(zip(f.X, f.Y, strict=True))
        ]
        federated = FederatedDataset(users.__getitem__, get_user_sampler("random", range(len(users))))
        net: Any = shared.model("W2").train()
        net.loss, net.metrics = MethodType(loss, net), MethodType(metrics, net)
        model = PyTorchModel(
            model=net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        )
        test = Dataset(raw_data=[torch.from_numpy(f.test_X), torch.from_numpy(f.test_Y)])
        evaluation = CentralEvaluationCallback(test, NNEvalHyperParams(local_batch_size=2048))
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds(),
                evaluation_frequency=10**6,  # of clients' own metrics
                train_cohort_size=COHORT,
                val_cohort_size=None,
            ),
            backend=SimulatedBackend(federated, val_data=federated, postprocessors=[WeightByUser()]),
            model=model,
            model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
            callbacks=[evaluation],
            send_metrics_to_platform=False,
        )
        found = metrics(net, torch.from_numpy(f.test_X), torch.from_numpy(f.test_Y))
        print("seed", f.seed, "accuracy", found["accuracy"].overall_value)


if __name__ == "__main__":
    main()
