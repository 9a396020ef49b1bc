"""LeNet as it is written for Ascend: nothing in it knows of this project."""

import mindspore.dataset as ds
import numpy as np
from mindspore import Model, context, nn, set_seed
from mindspore.common.initializer import Normal
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback

context.set_context(mode=context.GRAPH_MODE, device_target="Ascend", device_id=0)
init()
assert (get_rank(), get_group_size()) == (0, 1)


class LeNet5(nn.Cell):
    def __init__(self, num_class=10, num_channel=1):
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, num_class, weight_init=Normal(0.02))
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


class LossPrinter(Callback):
    def step_end(self, run_context):
        print("loss", float(run_context.original_args().net_outputs.asnumpy()))


def create_dataset(batch_size=16):
    images = np.random.randn(64, 1, 32, 32).astype(np.float32)
    labels = (np.arange(64) % 10).astype(np.int32)
    return ds.NumpySlicesDataset({"image": images, "label": labels}, shuffle=False).batch(batch_size)


set_seed(1)
np.random.seed(1)
net = LeNet5()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = Model(net, loss, optimizer, metrics={"acc"})
data = create_dataset()
model.train(2, data, callbacks=[LossPrinter()], dataset_sink_mode=True)
print("accuracy", model.eval(data, dataset_sink_mode=True)["acc"])
print("device", context.get_context("device_target"))
