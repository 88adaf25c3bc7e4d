"""The root of Delta tables in a folder, or in a bucket whose requests sometimes fail, for tests that run on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from channels.sinks.delta import object_path
from channels.sinks.delta.sink import DeltaSink
from tests.support.delta_protocol import BucketFiles, Files, FolderFiles, ProtocolReader
from tests.support.object_stores import Bucket, DrawnFaults, S3Server, fault_proxy

STORES = ("folder", "s3")


@dataclass
class Lake:
    """A root, and two readers of its tables that share no code with the sink. They read without faults."""

    root: Path | str
    storage: Mapping[str, str]
    table: Callable[[str], DeltaTable]  # by target name
    files: Callable[[str], Files]
    faults: DrawnFaults | None = None  # of the store
    _readers: dict[str, ProtocolReader] = field(default_factory=dict)

    def sink(self, **options: Any) -> DeltaSink:
        """Open a sink, as a new process of the job."""
        return DeltaSink(self.root, storage=self.storage, threads=2, **options)

    def reader(self, target: str) -> ProtocolReader:
        """Return the reader by the protocol, which remembers what it has read."""
        return self._readers.setdefault(target, ProtocolReader(self.files(target)))

    def by_deltalake(self, target: str) -> list[dict[str, Any]]:
        """Return all rows of a table, read by deltalake."""
        found = QueryBuilder().register("t", self.table(target)).execute("select * from t").read_all()
        return list(pa.table(found).to_pylist())


@contextmanager
def lake_of(
    store: str, request: pytest.FixtureRequest, folder: Path, seed: object, share: float = 0.03
) -> Iterator[Lake]:
    """Yield an empty root in ``store``, one of STORES. ``share``: of the writes to a bucket that have a fault."""
    if store == "folder":
        yield folder_lake(folder)
        return
    server: S3Server = request.getfixturevalue("s3_server")
    with pytest.MonkeyPatch.context() as patch, bucket_lake(server.bucket(), DrawnFaults(seed, share)) as lake:
        patch.setattr(object_path, "_PUT_DELAY_S", 0.001)
        yield lake


def folder_lake(root: Path) -> Lake:
    """Return the root in a folder."""
    return Lake(
        root,
        {},
        lambda target: DeltaTable(str(root / _folder(target))),
        lambda target: FolderFiles(root / _folder(target)),
    )


@contextmanager
def bucket_lake(bucket: Bucket, faults: DrawnFaults) -> Iterator[Lake]:
    """Yield a root in ``bucket``; the requests of its sinks have ``faults``."""
    with fault_proxy(bucket) as proxy:
        proxy.decide = faults
        yield Lake(
            f"{bucket.url}/lake",
            proxy.through(bucket).options,
            lambda target: bucket.open(f"lake/{_folder(target)}"),
            partial(_bucket_files, bucket),
            faults,
        )
    bucket.path("").delete_all()


def _bucket_files(bucket: Bucket, target: str) -> Files:
    return BucketFiles(bucket, f"lake/{_folder(target)}")


def _folder(target: str) -> str:
    return target.replace(".", "/")
