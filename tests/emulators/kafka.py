"""A real Kafka broker for tests: fetched with Maven once, started in a folder on loopback, stopped again."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cdc.demo.local_servers import free_port
from cdc.errors import PrerequisiteError
from tests.emulators.maven import obtain_jars

USER, PASSWORD = "cdc", "kafka-secret"
_PARTS = Path(__file__).parent / "kafka_parts"
_START_TIMEOUT_S = 240.0  # of a machine that does much else


def obtain_kafka() -> Path:
    """Return the folder with the broker's jars. The first call downloads 43 MB. Raises: PrerequisiteError."""
    return obtain_jars("kafka", _PARTS / "pom.xml")


def _quiet(*_: object) -> None:
    """Drop what librdkafka logs, such as refused connections while the broker restarts."""


class KafkaBroker:
    """One Kafka node (broker and controller) on loopback, with listeners that ask for SASL PLAIN, and for SCRAM in TLS.

    It ends with its parent. Use it as a context manager.
    """

    def __init__(
        self, jars: Path, folder: Path, first: KafkaBroker | None = None, node: int = 1, *, creates: bool = False
    ) -> None:
        """``first``: the node with the controller, if this is another ``node`` of its cluster. ``creates``: the broker
        creates topics that a request names.
        """
        self._creates = creates
        self.port, self.sasl_port, self.tls_port, self._controller = (free_port() for _ in range(4))
        self._first, self.node = first, node
        self.cluster: str = first.cluster if first is not None else _random_id()
        self.folder, self.log = folder, folder / "kafka.log"
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = create_certificate(folder, "broker")
        self._format()
        (folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))

    @property
    def address(self) -> str:
        """``host:port``, without a login."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        """``host:port`` of the listener with SASL PLAIN."""
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def tls_address(self) -> str:
        """``host:port`` of the listener with TLS and SASL SCRAM-SHA-512. ``certificate`` is its CA."""
        return f"127.0.0.1:{self.tls_port}"

    def add_scram_user(self) -> None:
        """Let USER log in with SCRAM."""
        kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(USER, kind, PASSWORD.encode())
        for future in self.admin.alter_user_scram_credentials([change]).values():
            future.result(60)

    @property
    def admin(self) -> AdminClient:
        """A client for administration, created once."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0}, logger=None)
        return self._admin

    def _format(self) -> None:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        if (data / "meta.properties").exists():
            return
        lines = ("version=1", f"cluster.id={self.cluster}", f"node.id={self.node}", f"directory.id={_random_id()}")
        (data / "meta.properties").write_text("".join(f"{line}\n" for line in lines))

    def _settings(self) -> dict[str, object]:
        advertised = (
            f"PLAINTEXT://127.0.0.1:{self.port},LOGIN://127.0.0.1:{self.sasl_port},TLS://127.0.0.1:{self.tls_port}"
        )
        is_first = self._first is None
        controller = self._controller if self._first is None else self._first._controller
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "process.roles": "broker,controller" if is_first else "broker",
            "node.id": self.node,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": advertised + (f",CONTROLLER://127.0.0.1:{controller}" if is_first else ""),
            "advertised.listeners": advertised,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f'{module} required user_{USER}="{PASSWORD}";',
            "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.tls.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": self.certificate.with_suffix(".key"),
            # a topic without a rule is open to all; the listener without a login may do everything
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": str(self._creates).lower(),
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4194304,
            "log.cleaner.backoff.ms": 200,
            "log.retention.check.interval.ms": 200,
            "log.initial.task.delay.ms": 200,
            "log.segment.delete.delay.ms": 100,
        }

    def __enter__(self) -> KafkaBroker:
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start, and wait until the broker answers."""
        wrapper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*wrapper, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-Dlog4j2.configurationFile={_PARTS / 'log4j2.properties'}", "-cp", f"{self._jars}/*"]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self.folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(0.2)
        self.kill()
        raise PrerequisiteError(f"Kafka did not start: {self.log.read_text()[-3000:]}", hint=f"See {self.log}.")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        try:
            return bool(self.admin.list_topics(timeout=5).brokers)
        except Exception:
            return False

    def stop(self) -> None:
        """Shut down cleanly. Harmless when repeated."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process, self._admin = self._process, None, None
        if process is not None and process.poll() is None:
            os.kill(process.pid, how)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # topics and messages

    def create(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic, and return its name. ``settings``: of the topic, with _ for each dot."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        new = NewTopic(topic, partitions, 1, config=config)
        self.admin.create_topics([new])[topic].result(60)
        until(lambda: len(self.partitions(topic)) == partitions)
        return topic

    def allow(self, name: str, user: str, *operations: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
        """Let a user do only ``operations`` with a topic, or a group, and others nothing."""
        literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rules = [AclBinding(kind, name, literal, f"User:{user}", "*", one, allowed) for one in operations]
        for future in self.admin.create_acls(rules).values():
            future.result(60)
        mine = AclBindingFilter(kind, name, literal, f"User:{user}", "*", AclOperation.ANY, AclPermissionType.ANY)
        until(lambda: {*rules} <= {*self.admin.describe_acls(mine).result(60)})

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic], operation_timeout=60)[topic].result(60)
        until(lambda: not self.partitions(topic))

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that have a leader; none if it does not exist."""
        found = self.admin.list_topics(topic, timeout=30).topics.get(topic)
        if found is None or found.error is not None:
            return []
        return [number for number, one in found.partitions.items() if one.leader >= 0]

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have ``total`` partitions."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)
        until(lambda: len(self.partitions(topic)) == total)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages below offset ``before``, as retention does."""
        asked = TopicPartition(topic, partition, before)
        for future in self.admin.delete_records([asked], operation_timeout=60).values():
            future.result(60)

    def producer(self, **settings: Any) -> Producer:
        """Return a producer of its own. ``settings``: librdkafka's, with _ for each dot."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.address, "linger.ms": 0, "log_level": 0, **config})

    def send(self, topic: str, *values: bytes | str | None, partition: int = 0, key: bytes | None = None) -> None:
        """Send messages to one partition, and wait until the broker has them."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, key, partition)
        assert producer.flush(60) == 0


def create_certificate(folder: Path, name: str) -> Path:
    """Create a certificate for 127.0.0.1, and beside it a file with its key. Return the path of the certificate."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    if not certificate.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        key.write_text(key.read_text() + certificate.read_text())
    return certificate


def _random_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def until(done: Any, seconds: float = 60.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
