"""fedjax: FedAvg as its own example writes it, every client's step compiled by JAX (its default, the jit backend).

Images are [32, 32, 3], JAX's natural order.  Clients come one after another; XLA uses as many threads as it is given cores.
It shuffles and repeats a client's data for exactly w.steps batches.  fedjax has no SCAFFOLD.
"""
# pyright: reportMissingImports=false
# ruff: noqa: E402

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.peers.turns import Gate, Work, work
from benchmarks.peers.with_old_names import jax

import fedjax  # isort: skip
import haiku as hk
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg


def dense(x: Any, *widths: int) -> Any:
    x = hk.Flatten()(x)
    for width in widths[:-1]:
        x = jax.nn.relu(hk.Linear(width)(x))
    return hk.Linear(widths[-1])(x)


def conv(x: Any, channels: int, kernel: int) -> Any:
    return jax.nn.relu(hk.Conv2D(channels, kernel, padding="VALID")(x))


def pool(x: Any) -> Any:
    return hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)


def drop(x: Any, rate: float) -> Any:
    return hk.dropout(hk.next_rng_key(), rate, x)


def cnn(x: Any) -> Any:
    x = drop(pool(conv(conv(x, 32, 3), 64, 3)), 0.25)
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(10)(drop(x, 0.5))


def lenet(x: Any) -> Any:
    return dense(pool(conv(pool(conv(x, 64, 5)), 64, 5)), 384, 192, 10)


def lstm(tokens: Any) -> Any:
    """haiku's LSTM has one bias where torch's has two; its time loop is a compiled `scan`."""
    x = hk.Embed(80, 8)(tokens.T)
    core = hk.DeepRNN([hk.LSTM(100), hk.LSTM(100)])
    hidden, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return hk.Linear(80)(hidden[-1])


MODELS: dict[str, Callable[[Any], Any]] = {
    "W1": lambda x: dense(x, 10),
    "W2": lambda x: dense(x, 200, 10),
    "W3": cnn,
    "W4": lenet,
    "LSTM": lstm,
}


def clients(w: Work) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    n = (w.clients, w.samples)
    if w.name == "LSTM":
        X = random.integers(80, size=(*n, 80), dtype=np.int32)
        Y = random.integers(80, size=n, dtype=np.int32)
    else:
        shape = (32, 32, 3) if w.name in ("W3", "W4") else (784,)
        X = random.random((*n, *shape), dtype=np.float32)
        Y = random.integers(10, size=n, dtype=np.int32)
    return {str(i): {"x": X[i], "y": Y[i]} for i in range(w.clients)}


def main() -> None:
    w = work()
    federated = fedjax.InMemoryFederatedData(clients(w))
    _, some = next(federated.clients())
    forward = MODELS[w.name]
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: forward(batch["x"])),
        sample_batch=some[:1].all_examples(),
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
        eval_metrics={"loss": fedjax.metrics.CrossEntropyLoss(), "accuracy": fedjax.metrics.Accuracy()},
    )

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        return jnp.mean(model.train_loss(batch, model.apply_for_train(params, batch, rng)))

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=w.batch, num_epochs=None, num_steps=w.steps)
    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        client_optimizer=fedjax.optimizers.sgd(w.lr),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=batches,
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    sampler = fedjax.client_samplers.UniformGetClientSampler(federated, w.cohort, seed=2)
    a_client = sum(len(batch["y"]) for batch in some.shuffle_repeat_batch(batches))
    test = fedjax.ClientDataset(clients(replace(w, clients=1, samples=w.evaluated or 10))["0"])
    batches_of_test = list(fedjax.padded_batch_client_datasets([test], batch_size=2000))
    gate = Gate("fedjax", lambda: a_client * w.cohort)
    while True:
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)  # JAX returns before it has computed
        if w.evaluated:
            {name: float(value) for name, value in fedjax.evaluate_model(model, state.params, batches_of_test).items()}
        if not gate():
            break


if __name__ == "__main__":
    main()
