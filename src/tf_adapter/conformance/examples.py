"""Twenty families of TensorFlow's and Keras's examples, small: which of their nodes stay on the host, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_adapter.explanation import Explanation, explain

__all__ = ["FAMILIES", "on_host"]

keras = tf.keras
layers = keras.layers
Family = Callable[[], tuple[Any, tuple[Any, ...]]]  # a function, and what it is called with
FAMILIES: dict[str, Family] = {}


def _family(function: Family) -> Family:
    FAMILIES[function.__name__.strip("_").replace("_", " ")] = function
    return function


def on_host(name: str) -> tuple[Explanation, list[tuple[str, str]]]:
    """The explanation of a family, and its operators on the host with their reasons."""
    with tf.device("/CPU:0"):
        function, arguments = FAMILIES[name]()
    found = explain(tf.function(function), *arguments)
    return found, sorted({(row.operator, row.reason) for row in found.rows if row.place != "NPU"})


def _pictures(count: int = 4, side: int = 16, channels: int = 3) -> Any:
    return tf.random.stateless_normal([count, side, side, channels], [1, 2])


def _step(model: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    """A training step of a model."""
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, model(x, training=True)))
        optimizer.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return value

    return step


def _labels(count: int = 4, classes: int = 3) -> Any:
    return tf.constant([i % classes for i in range(count)])


@_family
def _image_classification() -> tuple[Any, tuple[Any, ...]]:
    model = keras.Sequential(
        [
            layers.RandomFlip("horizontal", seed=1),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.2, seed=1),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model(_pictures())
    return _step(model, keras.losses.SparseCategoricalCrossentropy(True)), (_pictures(), _labels())


@_family
def _transfer_learning() -> tuple[Any, tuple[Any, ...]]:
    base = keras.applications.MobileNetV2((32, 32, 3), 0.35, include_top=False, weights=None, pooling="avg")
    base.trainable = False
    model = keras.Sequential([base, layers.Dense(3)])
    model(_pictures(2, 32))
    return _step(model, keras.losses.SparseCategoricalCrossentropy(True)), (_pictures(2, 32), _labels(2))


@_family
def _segmentation() -> tuple[Any, tuple[Any, ...]]:
    x = keras.Input((16, 16, 3))
    down = layers.Conv2D(8, 3, 2, "same", activation="relu")(x)
    up = layers.Conv2DTranspose(8, 3, 2, "same", activation="relu")(down)
    model = keras.Model(x, layers.Conv2D(3, 1)(layers.Concatenate()([up, x])))
    masks = tf.zeros([4, 16, 16], tf.int32)
    return _step(model, keras.losses.SparseCategoricalCrossentropy(True)), (_pictures(), masks)


@_family
def _text_classification() -> tuple[Any, tuple[Any, ...]]:
    text = layers.TextVectorization(20, output_sequence_length=6)
    text.adapt(["the cat sat", "a dog ran"])
    model = keras.Sequential([layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model(tf.zeros([2, 6], tf.int64))
    return lambda x: tf.sigmoid(model(text(x))), (tf.constant(["the cat", "a dog"]),)


@_family
def _lstm_text() -> tuple[Any, tuple[Any, ...]]:
    model = keras.Sequential(
        [layers.Embedding(20, 8, mask_zero=True), layers.Bidirectional(layers.LSTM(8)), layers.Dense(3)]
    )
    ids = tf.constant([[1, 2, 0], [3, 4, 5], [1, 0, 0], [2, 2, 2]])
    model(ids)
    return _step(model, keras.losses.SparseCategoricalCrossentropy(True)), (ids, _labels())


@_family
def _transformer_text() -> tuple[Any, tuple[Any, ...]]:
    x = keras.Input((6,), dtype="int32")
    e = layers.Embedding(20, 8)(x)
    a = layers.LayerNormalization()(e + layers.MultiHeadAttention(2, 4)(e, e))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalMaxPooling1D()(a + layers.Dense(8, "gelu")(a))))
    return _step(model, keras.losses.SparseCategoricalCrossentropy(True)), (
        tf.zeros([4, 6], tf.int32),
        _labels(),
    )


@_family
def _translation() -> tuple[Any, tuple[Any, ...]]:
    encoder, cell, out = layers.GRU(8, return_state=True), layers.GRUCell(8), layers.Dense(10)
    table = tf.random.stateless_normal([10, 8], [1, 2])
    state = encoder(tf.zeros([2, 3, 8]))[1]
    out(cell(tf.zeros([2, 8]), [state])[0])

    def greedy(x: Any) -> Any:
        state = encoder(tf.gather(table, x))[1]
        token, made = tf.zeros([2], tf.int64), tf.TensorArray(tf.int64, 5)
        for step in tf.range(5):
            y, [state] = cell(tf.gather(table, token), [state])
            token = tf.argmax(out(y), -1)
            made = made.write(step, token)
        return made.stack()

    return greedy, (tf.constant([[1, 2, 3], [4, 5, 6]]),)


@_family
def _masked_language_model() -> tuple[Any, tuple[Any, ...]]:
    table = tf.random.stateless_normal([20, 8], [1, 2])

    def masked(x: Any) -> Any:
        hidden = tf.random.stateless_uniform(tf.shape(x), [3, 4]) < 0.15
        x = tf.where(hidden, 19, x)
        scores = tf.matmul(tf.gather(table, x), table, transpose_b=True)
        return tf.reduce_mean(tf.boolean_mask(tf.nn.log_softmax(scores), hidden))

    return masked, (tf.ones([4, 6], tf.int32),)


@_family
def _time_series() -> tuple[Any, tuple[Any, ...]]:
    model = keras.Sequential(
        [layers.Conv1D(8, 3, padding="causal", activation="relu"), layers.LSTM(8), layers.Dense(1)]
    )
    x = tf.random.stateless_normal([4, 12, 2], [1, 2])
    model(x)
    return _step(model, lambda y, p: tf.square(y - p[:, 0])), (x, tf.zeros([4]))


@_family
def _structured_data() -> tuple[Any, tuple[Any, ...]]:
    colour = layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")
    age = layers.Normalization(mean=3.0, variance=2.0)
    dense = layers.Dense(1)
    dense(tf.zeros([1, 4]))

    def predict(c: Any, a: Any) -> Any:
        return tf.sigmoid(dense(tf.concat([tf.cast(colour(c), tf.float32), age(a)], 1)))

    return predict, (tf.constant(["red", "blue"]), tf.constant([[1.0], [2.0]]))


@_family
def _recommendation() -> tuple[Any, tuple[Any, ...]]:
    users, items = (tf.Variable(tf.random.stateless_normal([20, 8], [s, 2])) for s in (1, 2))

    def best(u: Any) -> Any:
        return tf.math.top_k(tf.matmul(tf.gather(users, u), items, transpose_b=True), 3)

    return best, (tf.constant([1, 2, 3]),)


@_family
def _autoencoder() -> tuple[Any, tuple[Any, ...]]:
    encoder, decoder = layers.Dense(8), layers.Dense(12)
    decoder(tf.zeros([1, 4]))
    encoder(tf.zeros([1, 12]))

    def loss(x: Any) -> Any:
        mean, spread = tf.split(encoder(x), 2, 1)
        z = mean + tf.exp(0.5 * spread) * tf.random.normal(tf.shape(mean))
        divergence = -0.5 * tf.reduce_sum(1 + spread - mean**2 - tf.exp(spread))
        return tf.reduce_mean(tf.square(decoder(z) - x)) + divergence

    return loss, (tf.random.stateless_normal([4, 12], [1, 2]),)


@_family
def _adversarial() -> tuple[Any, tuple[Any, ...]]:
    made, judge = keras.Sequential([layers.Dense(12, "tanh")]), keras.Sequential([layers.Dense(1)])
    judge(made(tf.zeros([1, 4])))

    def losses(x: Any) -> Any:
        noise = tf.random.normal([4, 4])
        with tf.GradientTape() as tape:
            false = judge(made(noise))
            value = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(false), false))
        return tape.gradient(value, made.trainable_variables), tf.reduce_mean(judge(x))

    return losses, (tf.random.stateless_normal([4, 12], [1, 2]),)


@_family
def _diffusion() -> tuple[Any, tuple[Any, ...]]:
    network = keras.Sequential(
        [
            layers.Conv2D(8, 3, padding="same", activation="swish"),
            layers.GroupNormalization(4),
            layers.Conv2D(3, 3, padding="same"),
        ]
    )
    network(_pictures())

    def sample(x: Any) -> Any:
        for step in tf.range(4):
            rate = tf.cos(tf.cast(step, tf.float32) * 0.3)
            x = (x - (1 - rate) * network(x)) / rate
        return tf.clip_by_value(x, 0.0, 1.0)

    return sample, (_pictures(),)


@_family
def _detection() -> tuple[Any, tuple[Any, ...]]:
    network = layers.Conv2D(7, 3, 2, "same")
    network(_pictures(1))

    def detect(x: Any) -> Any:
        rows = tf.reshape(network(x), [1, -1, 7])
        boxes = tf.concat([rows[..., :2], rows[..., :2] + tf.exp(rows[..., 2:4])], -1)
        return tf.image.combined_non_max_suppression(boxes[:, :, None], tf.sigmoid(rows[..., 4:]), 5, 10)

    return detect, (_pictures(1),)


@_family
def _text_recognition() -> tuple[Any, tuple[Any, ...]]:
    model = keras.Sequential(
        [layers.Conv2D(8, 3, padding="same"), layers.Reshape((16, 128)), layers.Dense(6)]
    )
    model(_pictures())

    def loss(x: Any, y: Any) -> Any:
        lengths = tf.fill([4], 16), tf.fill([4], 3)
        return tf.reduce_mean(
            tf.nn.ctc_loss(y, model(x), lengths[1], lengths[0], logits_time_major=False, blank_index=5)
        )

    return loss, (_pictures(), tf.ones([4, 3], tf.int32))


@_family
def _speech() -> tuple[Any, tuple[Any, ...]]:
    dense = layers.Dense(3)
    dense(tf.zeros([1, 33]))

    def scores(x: Any) -> Any:
        spectrum = tf.abs(tf.signal.stft(x, 64, 32))
        return dense(tf.reduce_mean(tf.math.log(spectrum + 1e-6), 1))

    return scores, (tf.random.stateless_normal([2, 256], [1, 2]),)


@_family
def _graph_network() -> tuple[Any, tuple[Any, ...]]:
    dense = layers.Dense(4, "relu")
    dense(tf.zeros([1, 4]))

    def layer(nodes: Any, sources: Any, targets: Any) -> Any:
        messages = tf.gather(dense(nodes), sources)
        return nodes + tf.math.unsorted_segment_mean(messages, targets, 5)

    return layer, (tf.ones([5, 4]), tf.constant([0, 1, 2, 3]), tf.constant([1, 2, 3, 4]))


@_family
def _metric_learning() -> tuple[Any, tuple[Any, ...]]:
    model = keras.Sequential([layers.Flatten(), layers.Dense(8), layers.UnitNormalization()])
    model(_pictures())

    def loss(anchor: Any, positive: Any) -> Any:
        scores = tf.einsum("ae,pe->ap", model(anchor), model(positive)) / 0.2
        return keras.losses.sparse_categorical_crossentropy(tf.range(4), scores, from_logits=True)

    return loss, (_pictures(), _pictures())


@_family
def _reinforcement_learning() -> tuple[Any, tuple[Any, ...]]:
    actor = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])
    actor(tf.zeros([1, 4]))

    def returns(states: Any, rewards: Any) -> Any:
        actions = tf.random.categorical(actor(states), 1)
        totals = tf.scan(lambda total, reward: reward + 0.99 * total, rewards[::-1])[::-1]
        chosen = tf.gather(tf.nn.log_softmax(actor(states)), actions, batch_dims=1)
        return -tf.reduce_mean(chosen[:, 0] * totals)

    return returns, (tf.ones([6, 4]), tf.ones([6]))
