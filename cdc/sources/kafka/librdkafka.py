"""librdkafka's consumer in the package confluent-kafka, with messages in one buffer instead of one object each.

The C interface is called by ctypes, and per message by kernels without the GIL. Classes of confluent-kafka are used for
everything that is not per message. One object per message would cost four to six times the CPU time of the rest.

Source: librdkafka 2.16, rdkafka.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import confluent_kafka.cimpl
import llvmlite.binding as llvm
import numpy as np
from confluent_kafka import KafkaError, KafkaException
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from cdc.errors import ConfigError
from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.mysql.values.kernels import kernel

_CONSUMER = 1  # rd_kafka_type_t
_TEXT_BYTES = 512
_ERROR_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_pointer, _text, _int, _long = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (_pointer, ()),
    "conf_destroy": (None, (_pointer,)),
    "conf_set": (_int, (_pointer, _text, _text, _text, ctypes.c_size_t)),
    "conf_set_error_cb": (None, (_pointer, _ERROR_CALLBACK)),
    "conf_set_log_cb": (None, (_pointer, _pointer)),
    "new": (_pointer, (_int, _pointer, _text, ctypes.c_size_t)),
    "destroy": (None, (_pointer,)),
    "poll_set_consumer": (_int, (_pointer,)),
    "consumer_close": (_int, (_pointer,)),
    "queue_get_consumer": (_pointer, (_pointer,)),
    "queue_destroy": (None, (_pointer,)),
    "assign": (_int, (_pointer, _pointer)),
    "incremental_assign": (_pointer, (_pointer, _pointer)),
    "incremental_unassign": (_pointer, (_pointer, _pointer)),
    "error_code": (_int, (_pointer,)),
    "error_string": (_text, (_pointer,)),
    "error_destroy": (None, (_pointer,)),
    "err2str": (_text, (_int,)),
    "topic_partition_list_new": (_pointer, (_int,)),
    "topic_partition_list_add": (_pointer, (_pointer, _text, ctypes.c_int32)),
    "topic_partition_list_set_offset": (_int, (_pointer, _text, ctypes.c_int32, _long)),
    "topic_partition_set_leader_epoch": (None, (_pointer, ctypes.c_int32)),
    "topic_partition_list_destroy": (None, (_pointer,)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_pointer, _int, _pointer, ctypes.c_size_t)),
    "topic_name": (_text, (_pointer,)),
    "message_leader_epoch": (ctypes.c_int32, (_pointer,)),
    "message_errstr": (_text, (_pointer,)),
    "message_timestamp": (_long, (_pointer, _pointer)),
    "message_destroy": (None, (_pointer,)),
}


class _Library:
    """The functions of the library that confluent-kafka is linked with."""

    def __init__(self) -> None:
        handle = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(handle, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        for name in ("message_timestamp", "message_destroy"):  # kernels call them by their symbols
            address = ctypes.cast(getattr(self, name), ctypes.c_void_p).value
            llvm.add_symbol(f"cdc_rd_kafka_{name}", address)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


try:
    _lib: Any = _Library()
except (OSError, AttributeError) as error:  # the library is linked statically, or is older than 2.1
    _lib, _missing = None, error

_timestamp = types.ExternalFunction("cdc_rd_kafka_message_timestamp", types.int64(types.int64, types.int64))
_destroy = types.ExternalFunction("cdc_rd_kafka_message_destroy", types.void(types.int64))

# rd_kafka_message_t: err, topic, partition, payload, len, key, key_len, offset, private: 8 bytes each
_ERR, _TOPIC, _PARTITION, _PAYLOAD, _LEN, _KEY, _KEY_LEN, _OFFSET = range(0, 64, 8)


@dataclass(frozen=True, slots=True)
class RawMessages:
    """Messages that librdkafka owns until ``free``. Each array has one value per message."""

    address: NDArray[np.int64]
    error: NDArray[np.int32]  # 0: a message; else the code of an error or an event, such as the end of a partition
    topic: NDArray[np.int64]  # address of the topic
    partition: NDArray[np.int32]
    offset: NDArray[np.int64]
    value_size: NDArray[np.int64]  # -1: null
    key_size: NDArray[np.int64]  # -1: null
    timestamp_ms: NDArray[np.int64]  # -1: unknown

    def topic_name(self, number: int) -> str:
        """Return the topic of a message, or "" if an error has none."""
        address = int(self.topic[number])
        return _lib.topic_name(address).decode() if address else ""

    def epoch(self, number: int) -> int:
        """Return the leader epoch of a message; -1: unknown."""
        return int(_lib.message_leader_epoch(int(self.address[number])))

    def reported(self, number: int) -> KafkaError:
        """Return the error that arrived instead of a message."""
        text = _lib.message_errstr(int(self.address[number])) or b""
        return KafkaError(int(self.error[number]), text.decode(errors="replace"))

    def copy(
        self,
        chosen: NDArray[np.int64],
        data: NDArray[np.uint8],
        value_at: NDArray[np.int64],
        key_at: NDArray[np.int64],
    ) -> None:
        """Copy values and keys of the messages ``chosen`` into ``data``."""
        _copy(self.address[chosen], data, value_at, key_at)

    def free(self) -> None:
        """Return the memory to librdkafka."""
        _free(self.address)


class RawConsumer:
    """A consumer of assigned partitions. Calls: one thread."""

    def __init__(self, settings: Mapping[str, str], on_error: Callable[[KafkaError], None], size: int) -> None:
        """``settings``: librdkafka's. ``on_error``: errors of connections. ``size``: most messages of one call.

        Raises: KafkaException - a setting is refused; ConfigError - the library cannot be used.
        """
        if _lib is None:
            raise ConfigError(
                f"The library librdkafka cannot be used: {_missing}.",
                hint="Install the wheel of confluent-kafka 2.3 or newer: `pip install 'spark-binlog-load[kafka]'`.",
            )
        self._callback = _ERROR_CALLBACK(
            lambda _, code, reason, __: on_error(KafkaError(code, (reason or b"").decode(errors="replace")))
        )
        self._handle = self._created(settings)
        _lib.poll_set_consumer(self._handle)
        self._queue = _lib.queue_get_consumer(self._handle)
        self._addresses = np.empty(size, np.int64)

    def _created(self, settings: Mapping[str, str]) -> int:
        config, text = _lib.conf_new(), ctypes.create_string_buffer(_TEXT_BYTES)
        for name, value in settings.items():
            if _lib.conf_set(config, name.encode(), value.encode(), text, _TEXT_BYTES):
                _lib.conf_destroy(config)
                raise _refused(text)
        _lib.conf_set_error_cb(config, self._callback)
        _lib.conf_set_log_cb(config, None)
        handle = _lib.new(_CONSUMER, config, text, _TEXT_BYTES)
        if not handle:
            _lib.conf_destroy(config)
            raise _refused(text)
        return int(handle)

    def assign(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        """Read these partitions instead of the ones before. Raises: KafkaException."""
        with _Partitions(offsets) as partitions:
            if code := _lib.assign(self._handle, partitions):
                raise KafkaException(KafkaError(code, _lib.err2str(code).decode()))

    def add(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        """Read these partitions too. Raises: KafkaException."""
        with _Partitions(offsets) as partitions:
            _check(_lib.incremental_assign(self._handle, partitions))

    def remove(self, removed: Iterable[Partition]) -> None:
        """Do not read these partitions any more. Raises: KafkaException."""
        with _Partitions(dict.fromkeys(removed, PartitionOffset(-1001))) as partitions:
            _check(_lib.incremental_unassign(self._handle, partitions))

    def read(self, timeout_s: float) -> RawMessages:
        """Return what arrives within ``timeout_s``. The caller frees it."""
        count = _lib.consume_batch_queue(
            self._queue, round(timeout_s * 1000), self._addresses.ctypes.data, len(self._addresses)
        )
        address = self._addresses[: max(count, 0)].copy()
        found = RawMessages(
            address,
            *(np.empty(len(address), kind) for kind in (np.int32, np.int64, np.int32, *[np.int64] * 4)),
        )
        _describe(
            address, found.error, found.topic, found.partition, found.offset, found.value_size, found.key_size,
            found.timestamp_ms, np.zeros(1, np.int64),
        )  # fmt: skip
        return found

    def close(self) -> None:
        """Close the connections. May be repeated. Every message must be free."""
        handle, self._handle = self._handle, 0
        if handle:
            _lib.queue_destroy(self._queue)
            _lib.consumer_close(handle)
            _lib.destroy(handle)


class _Partitions:
    """A list of partitions with offsets, as librdkafka takes it."""

    def __init__(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        self._list = _lib.topic_partition_list_new(len(offsets))
        for (topic, number), offset in offsets.items():
            name = topic.encode()
            entry = _lib.topic_partition_list_add(self._list, name, number)
            _lib.topic_partition_list_set_offset(self._list, name, number, offset.next)
            if offset.epoch >= 0:
                _lib.topic_partition_set_leader_epoch(entry, offset.epoch)

    def __enter__(self) -> int:
        return int(self._list)

    def __exit__(self, *_: object) -> None:
        _lib.topic_partition_list_destroy(self._list)


def _check(error: int | None) -> None:
    if error:
        found = KafkaError(_lib.error_code(error), _lib.error_string(error).decode(errors="replace"))
        _lib.error_destroy(error)
        raise KafkaException(found)


def _refused(text: ctypes.Array[ctypes.c_char]) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    """Return the int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=8)

    return types.int64(types.int64), generate


@intrinsic
def _copy_bytes(typing_context: Any, address: Any, size: Any, data: Any, at: Any) -> Any:
    """Copy ``size`` bytes from an address to ``data[at:]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[2])(context, builder, arguments[2])
        source = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        cgutils.raw_memcpy(builder, builder.gep(array.data, [arguments[3]]), source, arguments[1], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, data, types.int64), generate


@kernel
def _describe(addresses, errors, topics, partitions, offsets, value_sizes, key_sizes, times, kind):  # type: ignore[no-untyped-def]
    for row in range(len(addresses)):
        address = addresses[row]
        errors[row] = np.int32(_load(address + _ERR))  # 4 bytes, and 4 of padding
        topics[row] = _load(address + _TOPIC)
        partitions[row] = np.int32(_load(address + _PARTITION))
        offsets[row] = _load(address + _OFFSET)
        value_sizes[row] = _load(address + _LEN) if _load(address + _PAYLOAD) != 0 else -1
        key_sizes[row] = _load(address + _KEY_LEN) if _load(address + _KEY) != 0 else -1
        times[row] = -1
        if errors[row] == 0:
            moment = _timestamp(address, kind.ctypes.data)
            if kind[0] & 0xFFFFFFFF != 0:  # 0: the message has no timestamp
                times[row] = moment


@kernel
def _copy(addresses, data, value_at, key_at):  # type: ignore[no-untyped-def]
    for row in range(len(addresses)):
        value, key = _load(addresses[row] + _PAYLOAD), _load(addresses[row] + _KEY)
        if value != 0:
            _copy_bytes(value, _load(addresses[row] + _LEN), data, value_at[row])
        if key != 0:
            _copy_bytes(key, _load(addresses[row] + _KEY_LEN), data, key_at[row])


@kernel
def _free(addresses):  # type: ignore[no-untyped-def]
    for row in range(len(addresses)):
        _destroy(addresses[row])
