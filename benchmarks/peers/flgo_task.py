"""The data and the model of a workload as FLGo asks for them: it copies this file into a benchmark that it makes."""

from torch.utils.data import TensorDataset

from benchmarks.peers import shared
from benchmarks.peers.turns import work

X, Y = shared.data(work())
train_data = TensorDataset(X.flatten(0, 1), Y.flatten())
test_data = TensorDataset(X[0, :10], Y[0, :10])  # never evaluated


def get_model() -> shared.Net:
    return shared.model(work().name)
