"""The public header include/kvferry/kvferry.h in ctypes: numbers, structures, functions.

tests/test_header.py holds every line of this file against the header and a C compiler.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum


class Status(IntEnum):
    """Why a call or a room failed; the header says what each one means."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_RANGE = 2
    NO_MEMORY = 3
    LIMIT = 4
    BUSY = 5
    WRONG_STATE = 6
    BAD_SETTING = 7
    ADDRESS_IN_USE = 8
    SYSTEM = 9
    REGISTRATION = 10
    BOOTSTRAP = 11
    TIMEOUT = 12
    PEER_GONE = 13
    PROTOCOL = 14
    MISMATCH = 15
    PROFILE = 16
    TRANSPORT = 17
    ABORTED = 18
    SHUTDOWN = 19
    UNSUPPORTED = 20
    PEER_FAILED = 21
    CORRUPT = 22


class LogLevel(IntEnum):
    OFF = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4


class Role(IntEnum):
    """Which side of the hand-off a manager is."""

    PREFILL = 1
    DECODE = 2


class Memory(IntEnum):
    """Where a buffer lies."""

    HOST = 0
    CUDA = 1


class Poll(IntEnum):
    """A room's state, with SGLang's numbers. SUCCESS and FAILED are final."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


class Safety(IntEnum):
    """Whether a room's pages and aux slot may be reused."""

    IN_USE = 0
    SAFE = 1
    RELEASED = 2


class Proof(IntEnum):
    """How it is known that a room's pages are safe."""

    NONE = 0
    NEVER_DISCLOSED = 1
    COMPLETED = 2
    ACKNOWLEDGED = 3
    RECEIVER_CLOSED = 4
    WRITER_EXITED = 5
    TRANSPORT_DONE = 6


class Verify(IntEnum):
    """Whether a room's bytes are checked end to end."""

    DEFAULT = 0
    OFF = 1
    ON = 2
    REQUIRED = 3


class CSetting(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("type", c_char_p),
        ("default_value", c_char_p),
        ("range", c_char_p),
        ("help", c_char_p),
    ]


class CBuffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("base", c_uint64),
        ("length", c_uint64),
        ("item_length", c_uint64),
        ("memory", c_uint32),
        ("device", c_uint32),
    ]


class CLayout(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("buffers", POINTER(CBuffer)),
        ("buffer_count", c_size_t),
        ("aux", POINTER(CBuffer)),
        ("aux_count", c_size_t),
        ("engine_rank", c_uint32),
        ("tp_size", c_uint32),
        ("dp_size", c_uint32),
        ("mla", c_uint32),
        ("device", c_uint32),
    ]


class CEvent(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("room", c_uint64),
        ("user", c_void_p),
        ("bytes", c_uint64),
        ("state", c_uint32),
        ("status", c_uint32),
        ("safety", c_uint32),
        ("proof", c_uint32),
        ("verified", c_uint32),
        ("reserved", c_uint32 * 3),
    ]


class CStatistics(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rooms_open", c_uint64),
        ("rooms_opened", c_uint64),
        ("rooms_succeeded", c_uint64),
        ("rooms_failed", c_uint64),
        ("requests_held", c_uint64),
        ("requests_expired", c_uint64),
        ("peers", c_uint64),
        ("peers_lost", c_uint64),
        ("messages_received", c_uint64),
        ("messages_dropped", c_uint64),
        ("notifications_received", c_uint64),
        ("notifications_dropped", c_uint64),
        ("pages_sent", c_uint64),
        ("writes_posted", c_uint64),
        ("bytes_written", c_uint64),
        ("transfers_active", c_uint64),
        ("registered", c_uint64),
        ("rooms_fencing", c_uint64),
        ("rooms_released", c_uint64),
    ]


class CRoomOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("user", c_void_p),
        ("dp_rank", c_int64),
        ("verify", c_uint32),
        ("reserved", c_uint32),
    ]


ENUMS = {
    "kvf_status": ("KVF_", Status),
    "kvf_log_level": ("KVF_LOG_", LogLevel),
    "kvf_role": ("KVF_", Role),
    "kvf_memory": ("KVF_MEMORY_", Memory),
    "kvf_poll": ("KVF_", Poll),
    "kvf_safety": ("KVF_PAGES_", Safety),
    "kvf_proof": ("KVF_PROOF_", Proof),
    "kvf_verify": ("KVF_VERIFY_", Verify),
}

STRUCTURES = {
    "kvf_setting": CSetting,
    "kvf_buffer": CBuffer,
    "kvf_layout": CLayout,
    "kvf_event": CEvent,
    "kvf_statistics": CStatistics,
    "kvf_room_options": CRoomOptions,
}

HANDLE = c_void_p  # of any opaque type
HANDLE_OUT = POINTER(c_void_p)

# Functions that may take longer than a thread switch: Python's other threads go on meanwhile.
WAITING = {
    "kvf_manager_open": (c_int, [HANDLE_OUT, c_int, POINTER(CLayout), HANDLE]),
    "kvf_manager_close": (None, [HANDLE]),
    "kvf_manager_wait": (c_int, [HANDLE, POINTER(CEvent), c_size_t, c_int]),
    "kvf_manager_statistics": (c_int, [HANDLE, POINTER(CStatistics)]),
    "kvf_sender_wait": (c_int, [HANDLE, c_int]),
    "kvf_receiver_wait": (c_int, [HANDLE, c_int]),
    "kvf_bootstrap_start": (c_int, [HANDLE_OUT, c_char_p, HANDLE]),
    "kvf_bootstrap_stop": (None, [HANDLE]),
}

# Functions that return at once. They keep Python's lock: giving it up and fighting a busy thread for it takes up to
# five milliseconds, and the library never calls back into Python.
QUICK = {
    "kvf_status_name": (c_char_p, [c_int]),
    "kvf_proof_name": (c_char_p, [c_int]),
    "kvf_error_text": (c_char_p, []),
    "kvf_version": (c_char_p, []),
    "kvf_ucx_version": (c_char_p, []),
    "kvf_settings_open": (c_int, [HANDLE_OUT]),
    "kvf_settings_close": (None, [HANDLE]),
    "kvf_settings_set": (c_int, [HANDLE, c_char_p, c_char_p]),
    "kvf_settings_get": (c_char_p, [HANDLE, c_char_p]),
    "kvf_settings_log": (c_int, [HANDLE, c_void_p, c_void_p]),
    "kvf_settings_describe": (c_int, [c_size_t, POINTER(CSetting)]),
    "kvf_manager_fd": (c_int, [HANDLE]),
    "kvf_manager_port": (c_uint16, [HANDLE]),
    "kvf_sender_open": (c_int, [HANDLE, c_uint64, POINTER(CRoomOptions), HANDLE_OUT]),
    "kvf_sender_expect": (c_int, [HANDLE, c_uint32, c_uint32]),
    "kvf_sender_send": (c_int, [HANDLE, c_void_p, c_size_t]),
    "kvf_sender_abort": (None, [HANDLE]),
    "kvf_sender_poll": (c_int, [HANDLE]),
    "kvf_sender_status": (c_int, [HANDLE]),
    "kvf_sender_safety": (c_int, [HANDLE]),
    "kvf_sender_failure_text": (c_char_p, [HANDLE]),
    "kvf_sender_proof": (c_int, [HANDLE]),
    "kvf_sender_view": (c_void_p, [HANDLE]),
    "kvf_sender_close": (None, [HANDLE]),
    "kvf_receiver_open": (c_int, [HANDLE, c_char_p, c_uint64, POINTER(CRoomOptions), HANDLE_OUT]),
    "kvf_receiver_expect": (c_int, [HANDLE, c_void_p, c_size_t, c_uint32]),
    "kvf_receiver_abort": (None, [HANDLE]),
    "kvf_receiver_poll": (c_int, [HANDLE]),
    "kvf_receiver_status": (c_int, [HANDLE]),
    "kvf_receiver_safety": (c_int, [HANDLE]),
    "kvf_receiver_failure_text": (c_char_p, [HANDLE]),
    "kvf_receiver_proof": (c_int, [HANDLE]),
    "kvf_receiver_view": (c_void_p, [HANDLE]),
    "kvf_receiver_close": (None, [HANDLE]),
    "kvf_bootstrap_port": (c_uint16, [HANDLE]),
}
