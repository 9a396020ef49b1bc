"""Training on the NPUs of a Ray cluster: a PyTorch and a TensorFlow loop, two workers with one NPU each.

    pip install "ray[train]"
    NPU_DEVICE_COUNT=2 python examples/ray_training.py

Ray finds NPUs by itself (through `acl`), gives each worker its own (ASCEND_RT_VISIBLE_DEVICES) and starts the workers'
process group. On Kubernetes the same script runs as a RayJob; its workers ask for the resource NPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from ray.train.torch import TorchConfig, TorchTrainer

ROWS = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
TARGETS = ROWS.sum(1, keepdims=True)
STEPS = 8


def report(losses: list[float]) -> None:
    """Keep the losses with the run: Ray keeps what comes with a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "losses.json").write_text(json.dumps(losses))
        rank = train.get_context().get_world_rank()
        train.report({"losses": losses}, checkpoint=None if rank else train.Checkpoint.from_directory(folder))


def torch_loop() -> None:
    """Distributed data parallel over the backend hccl: each worker trains on its half of every batch."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import torch_npu

    assert torch_npu.npu.device_count() == 1, "Ray shows a worker its own NPU only"
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to("npu")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    x, y = (torch.from_numpy(a[rank::size].copy()).to("npu") for a in (ROWS, TARGETS))
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.distributed.all_reduce(mean := loss.detach().clone())
        losses.append(float(mean) / size)
    report(losses)


def tensorflow_loop() -> None:
    """MultiWorkerMirroredStrategy over the cluster that Ray describes in TF_CONFIG."""
    import tensorflow as tf

    import tf_adapter

    assert tf_adapter.explain
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(1)])
        optimizer = tf.keras.optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / len(ROWS)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("sum", strategy.run(replica, args=(x, y)), axis=None)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    rows = tf.data.Dataset.from_tensor_slices((ROWS, TARGETS)).batch(len(ROWS)).repeat(STEPS)
    batches = strategy.experimental_distribute_dataset(rows.with_options(options))
    report([float(step(x, y)) for x, y in batches])


def main() -> None:
    """Start a cluster on this machine and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="*", default=["torch", "tensorflow"])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    ray.init(num_cpus=arguments.workers, include_dashboard=False)
    npus = int(ray.cluster_resources().get("NPU", 0))
    if npus < arguments.workers:
        raise SystemExit(f"Ray sees {npus} NPUs: set NPU_DEVICE_COUNT={arguments.workers} before it starts")
    scaling = ScalingConfig(num_workers=arguments.workers, resources_per_worker={"CPU": 1, "NPU": 1})
    with tempfile.TemporaryDirectory() as folder:
        run = RunConfig(storage_path=folder)
        for name in arguments.frameworks:
            trainer = (
                TorchTrainer(
                    torch_loop, scaling_config=scaling, run_config=run, torch_config=TorchConfig("hccl")
                )
                if name == "torch"
                else TensorflowTrainer(tensorflow_loop, scaling_config=scaling, run_config=run)
            )
            losses = trainer.fit().metrics["losses"]
            print(f"{name}: loss {losses[0]:.6f} to {losses[-1]:.6f} in {len(losses)} steps", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
