"""fedjax, the whole experiment: FedAvg as its own example writes it, its `evaluate_model` every round."""
# pyright: reportMissingImports=false
# ruff: noqa: E402

from typing import Any

from benchmarks.peers.whole import BATCH, COHORT, LR, federations, rounds
from benchmarks.peers.with_old_names import jax

import fedjax  # isort: skip
import haiku as hk
import jax.numpy as jnp
from fedjax.algorithms import fed_avg


def forward(batch: Any) -> Any:
    return hk.Linear(10)(jax.nn.relu(hk.Linear(200)(batch["x"])))


def main() -> None:
    for f in federations():
        data = {str(i): {"x": X, "y": Y} for i, (X, Y) in enumerate(zip(f.X, f.Y, strict=True))}
        federated = fedjax.InMemoryFederatedData(data)
        model = fedjax.create_model_from_haiku(
            hk.transform(forward),
            sample_batch={"x": f.X[0][:1], "y": f.Y[0][:1]},
            train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
            eval_metrics={"loss": fedjax.metrics.CrossEntropyLoss(), "accuracy": fedjax.metrics.Accuracy()},
        )

        def loss(params: Any, batch: Any, rng: Any, model: Any = model) -> Any:
            return jnp.mean(model.train_loss(batch, model.apply_for_train(params, batch, rng)))

        algorithm = fed_avg.federated_averaging(
            jax.jit(jax.grad(loss)),
            client_optimizer=fedjax.optimizers.sgd(LR),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
        )
        state = algorithm.init(model.init(jax.random.PRNGKey(f.seed)))
        sampler = fedjax.client_samplers.UniformGetClientSampler(federated, COHORT, seed=f.seed)
        test = fedjax.padded_batch_client_datasets(
            [fedjax.ClientDataset({"x": f.test_X, "y": f.test_Y})], batch_size=2000
        )
        batches, found = list(test), {}
        for _ in range(rounds()):
            state, _ = algorithm.apply(state, sampler.sample())
            found = fedjax.evaluate_model(model, state.params, batches)
        print("seed", f.seed, {name: float(value) for name, value in found.items()})


if __name__ == "__main__":
    main()
