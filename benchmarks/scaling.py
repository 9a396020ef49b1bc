"""Training steps on two NPUs of one core each, beside one NPU of one core, one of two, and the frameworks' own ways.

Each contender is a process of its own; steps are taken in turns, so that all see the same machine. One NPU of one core
has a batch of `--batch`, all others twice that: what is compared is samples a second. Both the median and the best of
all rounds are printed: on a machine that others use, the best is nearer to the truth, and the samples for a second of
processor time, of all threads and processes, nearer still. A second table says what a model expects of 8 to 1,024
NPUs (`reduction_costs.py`).

    python benchmarks/scaling.py --models ResNet50 BERT --batch 8
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import reduction_costs
from benchmarks.measure import console, milliseconds, new_table, ratio
from npu_bridge.launch import reserved_port

RATE = 1e-5
ZOO = {"ResNet50": "resnet50", "BERT": "bert"}


@dataclass(frozen=True)
class Training:
    """A step that returns its loss, and the bytes of the gradients that it adds up."""

    step: Callable[[], float]
    gradients: int


# -- contenders --------------------------------------------------------------------------------------------------


def _by_tensorflow(devices: list[str], model: str, batch: int, quick: bool) -> Training:
    """One step of a strategy's replicas on data that they already have."""
    import tensorflow as tf

    from benchmarks.keras_models import MODELS

    strategy = tf.distribute.MirroredStrategy(devices)
    made = MODELS[model]
    with strategy.scope():
        network = made.build(quick)
        optimizer = tf.keras.optimizers.AdamW(RATE)
        optimizer.build(network.trainable_variables)
    share = batch // len(devices)
    data = made.feed(batch, quick)
    rows = strategy.experimental_distribute_values_from_function(
        lambda given: tf.constant(data[given.replica_id_in_sync_group * share :][:share])
    )

    def replica(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(network(x, training=True))) / batch
        weights = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    @tf.function
    def step() -> Any:
        return strategy.reduce("sum", strategy.run(replica, args=(rows,)), axis=None)

    gradients = sum(
        w.shape.num_elements() * w.dtype.size for w in map(tf.convert_to_tensor, network.trainable_variables)
    )
    return Training(lambda: float(step()), gradients)


def _npus(count: int, model: str, batch: int, quick: bool) -> Training:
    import tf_adapter

    assert tf_adapter
    return _by_tensorflow([f"/NPU:{i}" for i in range(count)], model, batch, quick)


def _cpus(model: str, batch: int, quick: bool) -> Training:
    import tensorflow as tf

    pieces = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], pieces)
    return _by_tensorflow(["/CPU:0", "/CPU:1"], model, batch, quick)


def _ddp(model: str, batch: int, quick: bool) -> Training:
    """One of two ranks; the other follows what the first is asked for."""
    import torch
    import torch.distributed as dist

    from benchmarks.models.zoo import zoo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    chosen = zoo(quick)[ZOO[model]]
    module = chosen.module().train().requires_grad_(True)
    share = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), RATE)
    inputs = [torch.from_numpy(a) for a in chosen.inputs(batch // 2)]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = share(*inputs).square().sum() / batch
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Training(step, sum(p.numel() * p.element_size() for p in module.parameters()))


ONE, TWO, WIDE, CPUS, DDP = (
    "1 NPU of 1 core",
    "2 NPUs of 1 core",
    "1 NPU of 2 cores",
    "TensorFlow, 2 logical CPUs",
    "PyTorch DDP, 2 processes",
)
CONTENDERS: dict[str, tuple[dict[str, str], int, Callable[[str, int, bool], Training]]] = {
    ONE: ({"NPU_NUM_THREADS": "1"}, 1, lambda *given: _npus(1, *given)),
    TWO: ({"NPU_NUM_THREADS": "1", "NPU_DEVICE_COUNT": "2"}, 2, lambda *given: _npus(2, *given)),
    WIDE: ({"NPU_NUM_THREADS": "2"}, 2, lambda *given: _npus(1, *given)),
    CPUS: ({}, 2, _cpus),
    DDP: ({"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}, 2, _ddp),
}


# -- processes ---------------------------------------------------------------------------------------------------


def serve(name: str, model: str, batch: int, quick: bool) -> None:
    """Make a step for every line that comes in, and answer with its time and loss."""
    _, times, make = CONTENDERS[name]
    training = make(model, batch * times, quick)
    training.step()
    training.step()
    print(training.gradients, flush=True)
    for _ in sys.stdin:
        begin, used = time.perf_counter(), time.process_time()
        loss = training.step()
        print(time.perf_counter() - begin, time.process_time() - used, loss, flush=True)


class Contender:
    """The process, or two, of a contender."""

    def __init__(self, name: str, model: str, given: argparse.Namespace) -> None:
        environment, self.samples = {**os.environ, **CONTENDERS[name][0]}, CONTENDERS[name][1] * given.batch
        command = [sys.executable, __file__, "--serve", name, "--models", model, "--batch", str(given.batch)]
        with reserved_port() as port:  # until the first rank listens on it
            environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "MASTER_PORT": str(port)}
            self._start(
                command + ["--quick"] * given.quick, environment, 2 if name == DDP else 1, given.verbose
            )
            ready = self._answers()
            if not all(answer.isdecimal() for answer in ready):
                raise RuntimeError(f"{name} did not start; --verbose shows why")
            self.gradients = int(ready[0])

    def _start(self, command: list[str], environment: dict[str, str], count: int, verbose: bool) -> None:
        self.ranks = [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if verbose else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(count)
        ]
        self.times: list[float] = []
        self.used: list[float] = []

    def _answers(self) -> list[str]:
        return [rank.stdout.readline().strip() for rank in self.ranks if rank.stdout]

    def step(self, keep: bool) -> None:
        """One step of all ranks: the time of the slowest, the processor time of all."""
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.write("\n")
            rank.stdin.flush()
        answers = [[float(v) for v in answer.split()[:2]] for answer in self._answers()]
        if keep:
            self.times.append(max(wall for wall, _ in answers))
            self.used.append(sum(used for _, used in answers))

    def close(self) -> None:
        """End the processes."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def measure(model: str, given: argparse.Namespace) -> None:
    """Print the table of a model."""
    names = [n for n in CONTENDERS if n in given.contenders]
    running = {name: Contender(name, model, given) for name in names}
    try:
        for _ in range(given.rounds):
            for contender in running.values():
                contender.step(keep=False)  # lets the threads of the one before go to sleep
                contender.step(keep=True)
    finally:
        for contender in running.values():
            contender.close()
    best = {name: running[name].samples / min(running[name].times) for name in names}
    usual = {name: running[name].samples / statistics.median(running[name].times) for name in names}
    thrifty = {name: running[name].samples / statistics.median(running[name].used) for name in names}
    columns = ["", "best ms", "median ms", "processor ms", "2 NPUs: best", "median", "by processor time"]
    table = new_table(f"{model}, {given.batch} samples a core", columns)
    for name in names:
        times = running[name].times
        cores = 2 if name == ONE else 1  # that the two NPUs have for one of the other
        table.add_row(
            name,
            milliseconds(min(times)),
            milliseconds(statistics.median(times)),
            milliseconds(statistics.median(running[name].used)),
            ratio(best[TWO] / best[name]),
            ratio(usual[TWO] / usual[name]),
            ratio(cores * thrifty[TWO] / thrifty[name]),
        )
    console.print(table)
    if ONE in running:
        one = running[ONE]
        link = {k: v for k, v in {"link": given.link, "latency": given.latency}.items() if v is not None}
        machine = replace(reduction_costs.measured(given.npus_per_host), **link)
        reduction_costs.print_table(machine, model, one.gradients, min(one.times))


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["ResNet50", "BERT"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--batch", type=int, default=8, help="samples of a core")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--npus-per-host", type=int, default=8, help="of the model for many NPUs")
    parser.add_argument(
        "--link", type=float, help="bytes a second between hosts (measured: this one's loopback)"
    )
    parser.add_argument("--latency", type=float, help="seconds of a message between hosts")
    parser.add_argument("--quick", action="store_true", help="small networks, three rounds")
    parser.add_argument("--verbose", action="store_true", help="what the processes print")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.models[0], given.batch, given.quick)
        return 0
    given.rounds = 3 if given.quick else given.rounds
    for model in given.models:
        measure(model, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
