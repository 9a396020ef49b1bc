"""A helper as ported folders ship it: operators by name, gradients registered for them."""

from tensorflow.python.framework import ops

from npu_device import gen_npu_ops


def dropout(x, keep_prob, seed=None, name=None):
    x = ops.convert_to_tensor(x, name="x")
    if isinstance(keep_prob, float) and keep_prob == 1:
        return x
    mask = gen_npu_ops.drop_out_gen_mask(x.shape, keep_prob, seed, seed, name)
    return gen_npu_ops.drop_out_do_mask(x, mask, keep_prob, name)


@ops.RegisterGradient("DropOutDoMaskV3")
def _dropout_grad(op, grad):
    return [gen_npu_ops.drop_out_do_mask_v3(grad, op.inputs[1], op.inputs[2]), None, None]


@ops.RegisterGradient("BasicLSTMCell")
def _cell_grad(op, *grads):
    raise NotImplementedError


@ops.RegisterGradient("DynamicGruV2")
def _gru_grad(op, *grads):
    raise NotImplementedError


@ops.RegisterGradient("DynamicRnn")
def _rnn_grad(op, *grads):
    raise NotImplementedError
