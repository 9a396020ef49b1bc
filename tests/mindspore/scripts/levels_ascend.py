"""Levels of mixed precision, losses scaled by a factor that changes, and data that sink, as scripts for Ascend do."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

ms.set_context(device_target="Ascend", mode=ms.GRAPH_MODE)
random = np.random.RandomState(0)
images = random.randn(16, 64).astype(np.float32)
labels = (np.arange(16) % 4).astype(np.int32)

for level in ("O0", "O2", "O3"):
    ms.set_seed(0)
    np.random.seed(0)
    net = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dropout(p=0.1), nn.Dense(32, 4))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    data = ds.NumpySlicesDataset((images, labels), shuffle=False).batch(4, drop_remainder=True)
    model = ms.Model(
        net, loss, nn.Momentum(net.trainable_params(), 0.05, 0.9), metrics={"loss"}, amp_level=level
    )
    before = model.eval(data, dataset_sink_mode=False)["loss"]
    model.train(8, data, dataset_sink_mode=True)
    after = model.eval(data, dataset_sink_mode=False)["loss"]
    print(f"level {level} before {before:.4f} after {after:.4f}")
    ms.save_checkpoint(net, "net.ckpt")
    ms.load_param_into_net(net, ms.load_checkpoint("net.ckpt"))
