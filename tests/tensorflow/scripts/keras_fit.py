"""A classifier with Keras, as scripts are ported: the options first, then the device."""

import argparse
import json
import os
import tempfile

import numpy as np
import tensorflow as tf

import npu_device

parser = argparse.ArgumentParser()
parser.add_argument("--precision_mode", default="must_keep_origin_dtype")
parser.add_argument("--profiling", action="store_true")
args = parser.parse_args()


def npu_config():
    folder = tempfile.mkdtemp()
    mixlist = os.path.join(folder, "ops_info.json")
    with open(mixlist, "w") as f:
        json.dump({"black-list": {"to-add": ["Softmax"]}}, f)
    switches = os.path.join(folder, "fusion_switch.cfg")
    with open(switches, "w") as f:
        f.write("fuse_softmax:off\n")
    npu_device.global_options().dump_config.enable_dump = False
    npu_device.global_options().dump_config.dump_path = folder
    npu_device.global_options().dump_config.dump_step = "0|5"
    npu_device.global_options().dump_config.dump_mode = "all"
    npu_device.global_options().dump_config.enable_dump_debug = False
    npu_device.global_options().dump_config.dump_debug_mode = "all"
    if args.profiling:
        npu_device.global_options().profiling_config.enable_profiling = True
        npu_device.global_options().profiling_config.profiling_options = json.dumps({"output": folder})
    npu_device.global_options().precision_mode = args.precision_mode
    npu_device.global_options().modify_mixlist = mixlist
    npu_device.global_options().fusion_switch_file = switches
    npu_device.global_options().auto_tune_mode = "RL,GA"
    npu_device.open().as_default()


npu_config()
tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((128, 12, 12, 1)).astype("float32")
y = (x[:, 4:8, 4:8].mean((1, 2, 3)) > 0).astype("int64")
model = tf.keras.Sequential(
    [
        tf.keras.Input((12, 12, 1)),
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(2),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
history = model.fit(x, y, epochs=8, batch_size=32, verbose=0)
assert history.history["loss"][-1] < 0.7 * history.history["loss"][0], history.history["loss"]
assert model.evaluate(x, y, verbose=0)[1] > 0.6
print("final loss", history.history["loss"][-1])
