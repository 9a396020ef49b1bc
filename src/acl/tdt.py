"""acl.tdt: named channels for tensors between threads of this process."""

from __future__ import annotations

import collections
import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acl import _memory
from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code
from acl._state import check_device
from acl.util import ptr_to_bytes

__all__ = [
    "add_data_item",
    "create_channel",
    "create_channel_with_capacity",
    "create_data_item",
    "create_dataset",
    "destroy_channel",
    "destroy_data_item",
    "destroy_dataset",
    "get_data_addr_from_item",
    "get_data_item",
    "get_data_size_from_item",
    "get_data_type_from_item",
    "get_dataset_size",
    "get_dims_from_item",
    "get_tensor_type_from_item",
    "query_channel_size",
    "receive_tensor",
    "send_tensor",
    "stop_channel",
]

DEFAULT_CAPACITY = 64


@dataclass
class Item:
    """A tensor, or a marker (end of sequence, abort)."""

    kind: int
    dims: tuple[int, ...]
    dtype: int
    address: int
    size: int
    owner: Any = None


@dataclass
class Dataset:
    """Tensors that are sent together."""

    items: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)  # items made by receive_tensor


@dataclass
class Queue:
    """Datasets sent to a channel name and not yet received."""

    capacity: int
    waiting: collections.deque[list[Item]] = field(default_factory=collections.deque)
    changed: threading.Condition = field(default_factory=threading.Condition)
    ends: int = 0
    stopped: bool = False


@dataclass
class Channel:
    """One end of a queue."""

    key: tuple[int, str]
    queue: Queue


channels: Handles[Channel] = Handles("channel")
datasets: Handles[Dataset] = Handles("dataset")
items: Handles[Item] = Handles("data item")
_queues: dict[tuple[int, str], Queue] = {}
_lock = threading.Lock()


def clear() -> None:
    """Release everything (acl.finalize)."""
    for _, channel in channels.items():
        _stop(channel.queue)
    tables: tuple[Handles[Any], ...] = (channels, datasets, items)
    for table in tables:
        table.clear()
    _queues.clear()


# -- channels --------------------------------------------------------------------------------------------------


@plain(0)
def create_channel(device_id: int, name: str) -> int:
    """Create an end of a named channel; ends with the same name are connected."""
    return _connect(device_id, name, DEFAULT_CAPACITY)


@plain(0)
def create_channel_with_capacity(device_id: int, name: str, capacity: int) -> int:
    """Create an end of a named channel with room for `capacity` datasets."""
    if capacity < 1:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"a capacity of {capacity}")
    return _connect(device_id, name, capacity)


def _connect(device_id: int, name: str, capacity: int) -> int:
    key = (check_device(device_id), str(name))
    with _lock:
        queue = _queues.setdefault(key, Queue(capacity))
        queue.ends += 1
    return channels.add(Channel(key, queue))


@returns_code
def stop_channel(handle: int) -> None:
    """Stop sending and wake up all waiters. Returns ret."""
    _stop(channels.get(handle).queue)


def _stop(queue: Queue) -> None:
    with queue.changed:
        queue.stopped = True
        queue.changed.notify_all()


@returns_code
def destroy_channel(handle: int) -> None:
    """Close an end; closing the last one drops unreceived datasets. Returns ret."""
    channel = channels.remove(handle)
    with _lock:
        channel.queue.ends -= 1
        if not channel.queue.ends:
            _queues.pop(channel.key, None)


@plain(0)
def query_channel_size(handle: int) -> int:
    """Number of waiting datasets."""
    return len(channels.get(handle).queue.waiting)


# -- data ------------------------------------------------------------------------------------------------------


@plain(0)
def create_data_item(tdt_type: int, dims: Sequence[int], data_type: int, data: int, size: int) -> int:
    """Create an item for a tensor at a host address."""
    if size:
        _memory.check_range(data, size, write=False)
    return items.add(Item(tdt_type, tuple(int(d) for d in dims), data_type, data, size))


@returns_code
def destroy_data_item(data_item: int) -> None:
    """Destroy an item, not its memory. Returns ret."""
    items.remove(data_item)


@plain(0)
def get_tensor_type_from_item(data_item: int) -> int:
    """ACL_TENSOR_DATA_TENSOR, or a marker."""
    return items.get(data_item).kind


@plain(c.ACL_DT_UNDEFINED)
def get_data_type_from_item(data_item: int) -> int:
    """The element type."""
    return items.get(data_item).dtype


@plain(0)
def get_data_addr_from_item(data_item: int) -> int:
    """The address of the elements."""
    return items.get(data_item).address


@plain(0)
def get_data_size_from_item(data_item: int) -> int:
    """The bytes of the elements."""
    return items.get(data_item).size


@plain([])
def get_dims_from_item(data_item: int) -> list[int]:
    """The shape."""
    return list(items.get(data_item).dims)


@plain(0)
def create_dataset() -> int:
    """Create an empty dataset."""
    return datasets.add(Dataset())


@returns_code
def destroy_dataset(dataset: int) -> None:
    """Destroy a dataset and the items received into it. Returns ret."""
    for item in datasets.remove(dataset).own:
        items.remove(item)


@returns_code
def add_data_item(dataset: int, data_item: int) -> None:
    """Append a tensor. Returns ret."""
    items.get(data_item)
    datasets.get(dataset).items.append(data_item)


@plain(0)
def get_dataset_size(dataset: int) -> int:
    """Number of items."""
    return len(datasets.get(dataset).items)


@plain(0)
def get_data_item(dataset: int, index: int) -> int:
    """An item by index."""
    found = datasets.get(dataset).items
    if not 0 <= index < len(found):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"the dataset has {len(found)} items, there is no {index}")
    return found[index]


# -- transfer --------------------------------------------------------------------------------------------------


@returns_code
def send_tensor(handle: int, dataset: int, timeout: int = -1) -> None:
    """Send copies of all tensors of a dataset; waits for room (milliseconds, -1: no limit). Returns ret."""
    queue = channels.get(handle).queue
    sent = [_copied(items.get(item)) for item in datasets.get(dataset).items]
    with queue.changed:
        _wait(queue, lambda: len(queue.waiting) < queue.capacity, timeout)
        if queue.stopped:
            raise AclError(c.ACL_ERROR_FAILURE, "the channel is stopped")
        queue.waiting.append(sent)
        queue.changed.notify_all()


def _copied(item: Item) -> Item:
    content = ctypes.create_string_buffer(
        ptr_to_bytes(item.address, item.size) if item.size else b"", max(item.size, 1)
    )
    return Item(item.kind, item.dims, item.dtype, ctypes.addressof(content), item.size, content)


@returns_code
def receive_tensor(handle: int, dataset: int, timeout: int = -1) -> None:
    """Append the tensors of the next dataset; they live as long as this dataset. Returns ret."""
    queue, target = channels.get(handle).queue, datasets.get(dataset)
    with queue.changed:
        _wait(queue, lambda: bool(queue.waiting), timeout)
        if not queue.waiting:
            raise AclError(c.ACL_ERROR_FAILURE, "the channel is stopped")
        received = queue.waiting.popleft()
        queue.changed.notify_all()
    made = [items.add(item) for item in received]
    target.items += made
    target.own += made


def _wait(queue: Queue, ready: Any, timeout: int) -> None:
    seconds = None if timeout < 0 else timeout / 1000
    if not queue.changed.wait_for(lambda: ready() or queue.stopped, seconds):
        raise AclError(
            c.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, f"nothing happened at the channel within {timeout} ms"
        )
