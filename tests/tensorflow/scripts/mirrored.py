"""Training on several devices: `mirrored.py RESULTS DEVICES KIND`, where KIND is NPU or CPU.

Writes what each program computes to RESULTS, one entry a program. Run with the same number of NPUs and of logical
CPUs, and with one NPU, it computes the same.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from typing import Any

import numpy as np
import tensorflow as tf

RESULTS, DEVICES, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if KIND == "NPU":
    import tf_adapter  # noqa: F401
else:
    pieces = [tf.config.LogicalDeviceConfiguration()] * DEVICES
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], pieces)

NAMES = [f"/{KIND}:{i}" for i in range(DEVICES)]
KERAS_2 = tf.__version__ < "2.16"
random = np.random.default_rng(0)
IMAGES = random.standard_normal((32, 6, 6, 2)).astype(np.float32)
LABELS = random.integers(0, 3, 32)


def strategy(way: Any = None) -> tf.distribute.Strategy:
    """TensorFlow's own default does not manage all of these programs on CPUs."""
    way = way or (tf.distribute.ReductionToOneDevice() if KIND == "CPU" else None)
    return tf.distribute.MirroredStrategy(NAMES, cross_device_ops=way)


def network(*middle: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    first = [layers.Input((6, 6, 2)), layers.Conv2D(4, 3), *(make() for make in middle), layers.ReLU()]
    return tf.keras.Sequential([*first, layers.Flatten(), layers.Dense(3)])


def compiled(model: Any, optimizer: Any) -> Any:
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def fitted(model: Any, epochs: int = 2) -> list[float]:
    history = model.fit(IMAGES, LABELS, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history
    return [*history["loss"], *history["accuracy"]]


def fit() -> Any:
    with strategy().scope():
        model = compiled(network(), tf.keras.optimizers.AdamW(1e-2))
    losses = fitted(model)
    evaluated = model.evaluate(IMAGES, LABELS, batch_size=16, verbose=0)
    predicted = model.predict(IMAGES[:13], batch_size=8, verbose=0)  # whose last batch is smaller
    return [*losses, *evaluated, *predicted.ravel()]


def fit_several_steps_a_call() -> Any:
    with strategy().scope():
        model = network()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss, steps_per_execution=2)
    return model.fit(IMAGES, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]


def synchronised_batch_normalisation() -> Any:
    with strategy().scope():
        model = compiled(
            network(lambda: tf.keras.layers.BatchNormalization(synchronized=True)),
            tf.keras.optimizers.SGD(0.1),
        )
    return fitted(model)


class Loop:
    """A training loop of one's own, with the sum of gradients written out."""

    def __init__(self, chosen: tf.distribute.Strategy, *, eager: bool = False) -> None:
        self.strategy = chosen
        with chosen.scope():
            self.weights = tf.Variable(tf.reshape(tf.linspace(-1.0, 1.0, 12), [4, 3]))
            self.seen = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        self.step = self._step if eager else tf.function(self._step)

    def _replica(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.tanh(x @ self.weights))) / 8
        gradient = tape.gradient(loss, self.weights)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        self.weights.assign_sub(0.1 * gradient)
        self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return loss

    def _step(self, x: Any) -> Any:
        return self.strategy.reduce("sum", self.strategy.run(self._replica, args=(x,)), axis=None)

    def over(self, batches: Any) -> list[float]:
        losses = [float(self.step(x)) for x in batches]
        return [*losses, *self.weights.numpy().ravel(), float(self.seen.read_value())]


ROWS = random.standard_normal((32, 4)).astype(np.float32)


def distributed(chosen: tf.distribute.Strategy) -> Any:
    return chosen.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(ROWS).batch(8))


def custom_loop() -> Any:
    chosen = strategy()
    return Loop(chosen).over(distributed(chosen))


def eager_loop() -> Any:
    chosen = strategy()
    return Loop(chosen, eager=True).over(distributed(chosen))


def steps_in_one_call() -> Any:
    chosen = strategy()
    loop = Loop(chosen)

    @tf.function
    def train(iterator: Any) -> Any:
        loss = 0.0
        for _ in tf.range(3):
            loss += loop._step(next(iterator))
        return loss

    return [float(train(iter(distributed(chosen)))), *loop.weights.numpy().ravel()]


def accumulated_gradients() -> Any:
    """Each replica adds up the gradients of two batches before the replicas' sums are added."""
    chosen = strategy()
    with chosen.scope():
        weights = tf.Variable(tf.ones([4, 3]))
        sums = tf.Variable(
            tf.zeros([4, 3]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def accumulate(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.tanh(x @ weights)))
        sums.assign_add(tape.gradient(loss, weights))

    def update() -> None:
        total = tf.distribute.get_replica_context().all_reduce("sum", sums.read_value())
        weights.assign_sub(0.01 * total)
        sums.assign(tf.zeros([4, 3]))

    @tf.function
    def step(first: Any, second: Any) -> None:
        chosen.run(accumulate, args=(first,))
        chosen.run(accumulate, args=(second,))
        chosen.run(update)

    batches = iter(distributed(chosen))
    for _ in range(2):
        step(next(batches), next(batches))
    return weights.numpy().ravel()


def dataset_from_function() -> Any:
    chosen = strategy()

    def pipeline(given: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(ROWS).batch(given.get_per_replica_batch_size(8))

    return Loop(chosen).over(chosen.distribute_datasets_from_function(pipeline))


def gathered() -> Any:
    chosen = strategy()
    numbers = chosen.experimental_distribute_values_from_function(
        lambda given: tf.constant([[1.0, 2.0]]) * (1.0 + given.replica_id_in_sync_group)
    )

    @tf.function
    def inside(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_gather(x, axis=0)

    whole = chosen.gather(numbers, axis=1)
    parts = chosen.experimental_local_results(chosen.run(inside, args=(numbers,)))
    means = chosen.reduce("mean", numbers, axis=0)
    for part in parts:
        np.testing.assert_array_equal(part.numpy().ravel(), whole.numpy().ravel())
    return [
        len(parts) / DEVICES,
        whole.numpy().sum() / (DEVICES * (DEVICES + 1)),
        *means.numpy() / (DEVICES + 1),
    ]


def every_way_to_reduce() -> Any:
    """All choices of cross_device_ops give the same; NCCL's is for devices other than CPUs."""
    ways = [tf.distribute.ReductionToOneDevice()]
    if KIND == "NPU":
        ways += [tf.distribute.NcclAllReduce(), tf.distribute.HierarchicalCopyAllReduce(num_packs=2)]
    losses = []
    for way in ways:
        chosen = strategy(way)
        losses.append(Loop(chosen).over(distributed(chosen)))
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-5)
    return losses[0]


def checkpoint_for_fewer_devices() -> Any:
    with strategy().scope():
        model = compiled(network(), tf.keras.optimizers.Adam(1e-2))
    fitted(model, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        model.save(path)
        fewer = tf.distribute.MirroredStrategy(NAMES[: max(DEVICES // 2, 1)])
        with fewer.scope():
            other = tf.keras.models.load_model(path)
        model.save_weights(f"{folder}/model.weights.h5")
        with fewer.scope():
            third = network()
            third.load_weights(f"{folder}/model.weights.h5")
        np.testing.assert_array_equal(third.get_weights()[0], model.get_weights()[0])
    return fitted(other, 1)


def variables_of_the_first_call() -> Any:
    """Functions that create their variables, as `adapt` of Keras's layers does."""
    chosen = strategy()
    made: list[tf.Variable] = []

    @tf.function
    def seen(x: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(tf.Variable(lambda: tf.ones([3]), trainable=False))
        made[0].assign(made[0] * 2.0 + tf.reduce_mean(x))
        return made[0].read_value()

    with chosen.scope():
        values = [seen(tf.ones([2]) * i) for i in range(3)]
        layer = tf.keras.layers.Normalization()
        layer.adapt(IMAGES.reshape(len(IMAGES), -1)[:, :5])
        values.append(layer(IMAGES.reshape(len(IMAGES), -1)[:, :5]))
    copies = [value.numpy() for value in made[0].values]
    for copy in copies:
        np.testing.assert_array_equal(copy, copies[0])
    return np.concatenate([np.ravel(v) for v in (*values, copies[0])])


def one_device() -> Any:
    chosen = tf.distribute.OneDeviceStrategy(NAMES[-1])
    return Loop(chosen).over(distributed(chosen))


def all_devices() -> Any:
    """Without a list a strategy takes all NPUs; for CPUs there is no such default."""
    chosen = tf.distribute.MirroredStrategy() if KIND == "NPU" else strategy()
    return [chosen.num_replicas_in_sync / DEVICES]


def data_parallel() -> Any:
    if KERAS_2:
        return []
    import keras

    devices = [name[1:].lower() for name in NAMES]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        return fitted(compiled(network(), keras.optimizers.SGD(0.1)))
    finally:
        keras.distribution.set_distribution(None)


PROGRAMS = (
    fit,
    fit_several_steps_a_call,
    synchronised_batch_normalisation,
    accumulated_gradients,
    custom_loop,
    eager_loop,
    steps_in_one_call,
    dataset_from_function,
    gathered,
    every_way_to_reduce,
    checkpoint_for_fewer_devices,
    variables_of_the_first_call,
    one_device,
    all_devices,
    data_parallel,
)

found: dict[str, Any] = {}
for program in PROGRAMS:
    if len(sys.argv) > 4 and program.__name__ not in sys.argv[4:]:
        continue
    try:
        found[program.__name__] = [float(v) for v in program()]
    except Exception:
        found[program.__name__] = traceback.format_exc()
    if RESULTS == "-":
        print(program.__name__, found[program.__name__], flush=True)
if RESULTS != "-":
    with open(RESULTS, "w") as file:
        json.dump(found, file)
