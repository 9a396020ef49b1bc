"""The NPU as a device of TensorFlow: the native half. See the stub file for what each name means."""

from . import _tensorflow as _native

Described = _native.Described
FunctionPlan = _native.FunctionPlan
SessionState = _native.SessionState
create_device = _native.create_device
drop_part = _native.drop_part
forget = _native.forget
forget_all = _native.forget_all
gpu_copies = _native.gpu_copies
use_gpus = _native.use_gpus
arena_bytes = _native.arena_bytes
arena_layout = _native.arena_layout
host_operators = _native.host_operators
load = _native.load
new_part = _native.new_part
reset_random = _native.reset_random
shared_updates = _native.shared_updates
set_callbacks = _native.set_callbacks
set_eager_threshold = _native.set_eager_threshold
set_host_device = _native.set_host_device
set_hard_placement = _native.set_hard_placement
set_log_placement = _native.set_log_placement
set_timeline = _native.set_timeline
take_counts = _native.take_counts
take_interrupt = _native.take_interrupt
take_timeline = _native.take_timeline
trim = _native.trim
