from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNSET: _ClassVar[EventKind]
    INSERT: _ClassVar[EventKind]
    UPDATE: _ClassVar[EventKind]
    DELETE: _ClassVar[EventKind]
    CREATE: _ClassVar[EventKind]
    ALTER: _ClassVar[EventKind]
    ERASE: _ClassVar[EventKind]
    QUERY: _ClassVar[EventKind]
    TRUNCATE: _ClassVar[EventKind]
    RENAME: _ClassVar[EventKind]
    CREATE_INDEX: _ClassVar[EventKind]
    DROP_INDEX: _ClassVar[EventKind]
    GTID: _ClassVar[EventKind]
    XA_COMMIT: _ClassVar[EventKind]
    XA_ROLLBACK: _ClassVar[EventKind]
    MASTER_HEARTBEAT: _ClassVar[EventKind]
UNSET: EventKind
INSERT: EventKind
UPDATE: EventKind
DELETE: EventKind
CREATE: EventKind
ALTER: EventKind
ERASE: EventKind
QUERY: EventKind
TRUNCATE: EventKind
RENAME: EventKind
CREATE_INDEX: EventKind
DROP_INDEX: EventKind
GTID: EventKind
XA_COMMIT: EventKind
XA_ROLLBACK: EventKind
MASTER_HEARTBEAT: EventKind

class Packet(_message.Message):
    __slots__ = ("magic_number", "version", "kind", "compression", "body")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSET: _ClassVar[Packet.Kind]
        HANDSHAKE: _ClassVar[Packet.Kind]
        CLIENT_AUTHENTICATION: _ClassVar[Packet.Kind]
        ACK: _ClassVar[Packet.Kind]
        SUBSCRIPTION: _ClassVar[Packet.Kind]
        UNSUBSCRIPTION: _ClassVar[Packet.Kind]
        GET: _ClassVar[Packet.Kind]
        MESSAGES: _ClassVar[Packet.Kind]
        CLIENT_ACK: _ClassVar[Packet.Kind]
        SHUTDOWN: _ClassVar[Packet.Kind]
        DUMP: _ClassVar[Packet.Kind]
        HEARTBEAT: _ClassVar[Packet.Kind]
        CLIENT_ROLLBACK: _ClassVar[Packet.Kind]
    UNSET: Packet.Kind
    HANDSHAKE: Packet.Kind
    CLIENT_AUTHENTICATION: Packet.Kind
    ACK: Packet.Kind
    SUBSCRIPTION: Packet.Kind
    UNSUBSCRIPTION: Packet.Kind
    GET: Packet.Kind
    MESSAGES: Packet.Kind
    CLIENT_ACK: Packet.Kind
    SHUTDOWN: Packet.Kind
    DUMP: Packet.Kind
    HEARTBEAT: Packet.Kind
    CLIENT_ROLLBACK: Packet.Kind
    MAGIC_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    magic_number: int
    version: int
    kind: Packet.Kind
    compression: int
    body: bytes
    def __init__(self, magic_number: _Optional[int] = ..., version: _Optional[int] = ..., kind: _Optional[_Union[Packet.Kind, str]] = ..., compression: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("communication_encoding", "seeds", "supported_compressions")
    COMMUNICATION_ENCODING_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_COMPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    communication_encoding: str
    seeds: bytes
    supported_compressions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, communication_encoding: _Optional[str] = ..., seeds: _Optional[bytes] = ..., supported_compressions: _Optional[_Iterable[int]] = ...) -> None: ...

class ClientAuth(_message.Message):
    __slots__ = ("username", "password", "net_read_timeout", "net_write_timeout")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    NET_READ_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    NET_WRITE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: bytes
    net_read_timeout: int
    net_write_timeout: int
    def __init__(self, username: _Optional[str] = ..., password: _Optional[bytes] = ..., net_read_timeout: _Optional[int] = ..., net_write_timeout: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("destination", "client_id", "filter")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    filter: str
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class Get(_message.Message):
    __slots__ = ("destination", "client_id", "fetch_size", "timeout", "unit", "auto_ack")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FETCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    fetch_size: int
    timeout: int
    unit: int
    auto_ack: bool
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., fetch_size: _Optional[int] = ..., timeout: _Optional[int] = ..., unit: _Optional[int] = ..., auto_ack: _Optional[bool] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("batch_id", "messages")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, batch_id: _Optional[int] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BatchRef(_message.Message):
    __slots__ = ("destination", "client_id", "batch_id")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    batch_id: int
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., batch_id: _Optional[int] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("header", "kind", "store_value")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSET: _ClassVar[Entry.Kind]
        TRANSACTION_BEGIN: _ClassVar[Entry.Kind]
        ROW_DATA: _ClassVar[Entry.Kind]
        TRANSACTION_END: _ClassVar[Entry.Kind]
        HEARTBEAT: _ClassVar[Entry.Kind]
        GTID_LOG: _ClassVar[Entry.Kind]
    UNSET: Entry.Kind
    TRANSACTION_BEGIN: Entry.Kind
    ROW_DATA: Entry.Kind
    TRANSACTION_END: Entry.Kind
    HEARTBEAT: Entry.Kind
    GTID_LOG: Entry.Kind
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STORE_VALUE_FIELD_NUMBER: _ClassVar[int]
    header: Header
    kind: Entry.Kind
    store_value: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., kind: _Optional[_Union[Entry.Kind, str]] = ..., store_value: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "file", "offset", "server_id", "encoding", "execute_time_ms", "source_kind", "database", "table", "event_length", "event_kind", "props", "gtid_set")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_KIND_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EVENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EVENT_KIND_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    GTID_SET_FIELD_NUMBER: _ClassVar[int]
    version: int
    file: str
    offset: int
    server_id: int
    encoding: str
    execute_time_ms: int
    source_kind: int
    database: str
    table: str
    event_length: int
    event_kind: EventKind
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    gtid_set: str
    def __init__(self, version: _Optional[int] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., server_id: _Optional[int] = ..., encoding: _Optional[str] = ..., execute_time_ms: _Optional[int] = ..., source_kind: _Optional[int] = ..., database: _Optional[str] = ..., table: _Optional[str] = ..., event_length: _Optional[int] = ..., event_kind: _Optional[_Union[EventKind, str]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., gtid_set: _Optional[str] = ...) -> None: ...

class TransactionEdge(_message.Message):
    __slots__ = ("execute_time_ms", "transaction_id", "props", "thread_id")
    EXECUTE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    execute_time_ms: int
    transaction_id: str
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    thread_id: int
    def __init__(self, execute_time_ms: _Optional[int] = ..., transaction_id: _Optional[str] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., thread_id: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("index", "sql_type", "name", "is_key", "updated", "is_null", "props", "value", "length", "mysql_type")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_KEY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MYSQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    index: int
    sql_type: int
    name: str
    is_key: bool
    updated: bool
    is_null: bool
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    value: str
    length: int
    mysql_type: str
    def __init__(self, index: _Optional[int] = ..., sql_type: _Optional[int] = ..., name: _Optional[str] = ..., is_key: _Optional[bool] = ..., updated: _Optional[bool] = ..., is_null: _Optional[bool] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., value: _Optional[str] = ..., length: _Optional[int] = ..., mysql_type: _Optional[str] = ...) -> None: ...

class RowData(_message.Message):
    __slots__ = ("before_columns", "after_columns", "props")
    BEFORE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AFTER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    before_columns: _containers.RepeatedCompositeFieldContainer[Column]
    after_columns: _containers.RepeatedCompositeFieldContainer[Column]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, before_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., after_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("table_id", "event_kind", "is_ddl", "sql", "rows", "props", "ddl_database")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_KIND_FIELD_NUMBER: _ClassVar[int]
    IS_DDL_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    DDL_DATABASE_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    event_kind: EventKind
    is_ddl: bool
    sql: str
    rows: _containers.RepeatedCompositeFieldContainer[RowData]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    ddl_database: str
    def __init__(self, table_id: _Optional[int] = ..., event_kind: _Optional[_Union[EventKind, str]] = ..., is_ddl: _Optional[bool] = ..., sql: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowData, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., ddl_database: _Optional[str] = ...) -> None: ...
