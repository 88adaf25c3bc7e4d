"""The creation of a Spark session: settings, JVM, and the project's packages on its executors."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cdc.errors import PrerequisiteError
from cdc.logging_setup import hide
from spark.class_archive import archive_options
from spark.connect_server import tokens_of
from spark.gateway import START_LIMIT_S, Jvm, JvmFolder, forget_jvm, killed_after, launch_jvm
from spark.java import check_spark
from spark.settings import JAVA_OPTIONS, RUNTIME, is_local, static_settings, with_java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = ("cdc", "channels", "spark")
_ROOT = Path(__file__).resolve().parent.parent
_EXTENSIONS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_ML = "/spark-mllib_"
_SOCKETS = "spark.python.unix.domain.socket.dir"


def build_session(
    app_name: str,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    java_options: str = "",
    *,
    limit_s: float = START_LIMIT_S,
    started: Callable[[Jvm], None] = lambda _: None,
    sends_packages: bool = True,
) -> SparkSession:
    """Return a session with the project's settings, overridden by ``conf``. ``remote``: address for Spark Connect.

    ``sends_packages``: False for a Spark Connect server whose workers have the packages of this process.
    ``started`` is called with the JVM as soon as its process exists. Calls: one at a time; a start takes seconds.
    Raises: PrerequisiteError - Java or a package is missing, or the JVM did not start within ``limit_s`` seconds and
    was killed.
    """
    check_spark(remote)
    if remote is None and not is_local(master):
        # a cluster may have its own Python for jobs, from an archive or an image
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # otherwise workers run the python3 of PATH
    # pyspark.pandas warns at import about versions of pandas, which is not used here
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    settings = {**RUNTIME, **(conf or {})}
    if remote is not None:
        return _connected(app_name, remote, settings, sends_packages=sends_packages)
    settings = {**static_settings(master), **settings}
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    jvm = running_jvm()
    is_new = jvm is None
    if jvm is None:
        options = settings.get(JAVA_OPTIONS, "")
        folder = JvmFolder()
        settings[JAVA_OPTIONS] = with_java_options(
            java_options or archive_options(), options, folder, forwards_rows=not is_local(master)
        )
        settings.setdefault(_SOCKETS, str(folder.path))
        jvm = launch_jvm(settings, master, folder, limit_s, started)
        _gateway().jvm_process = jvm
    from pyspark.sql import SparkSession

    _silence_query_logs()
    try:
        with killed_after(jvm, limit_s):
            created = None
            if is_new:
                created = _created_without_ml({**settings, "spark.master": master, "spark.app.name": app_name})
            builder = SparkSession.builder.master(master).appName(app_name)
            spark_session = created or _configured(builder, settings)
            if not is_local(master):  # executors on this machine find the packages by PYTHONPATH
                spark_session.sparkContext.addPyFile(str(_write_packages(jvm.create_folder())))
            spark_session.sparkContext.setLogLevel("ERROR")
    except BaseException:
        jvm.kill()
        forget_jvm()
        raise
    return spark_session


def _connected(app_name: str, remote: str, settings: Mapping[str, str], *, sends_packages: bool) -> SparkSession:
    from pyspark.errors import PySparkException

    hide(tokens_of(remote))
    _silence_query_logs()
    found: Any = None
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        from spark.connect_channel import ConnectChannelBuilder

        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as PySpark's `builder.remote` does, which takes no channel
        found = ConnectSession.builder.channelBuilder(ConnectChannelBuilder(remote)).create()  # sends nothing
        found.client.set_retry_policies([_retry_policy()])
        found.conf._set_all({"spark.app.name": app_name, **settings}, silent=True)  # one request, as the builder does
        if sends_packages:
            with tempfile.TemporaryDirectory(prefix="cdc-packages-") as folder:  # the server copies the file
                found.addArtifacts(str(_write_packages(Path(folder))), pyfile=True)
    except SystemExit as error:  # PySpark exits if a package is missing or too old
        raise PrerequisiteError(
            "PySpark does not accept the packages of Spark Connect in this environment.",
            hint="Run `pip install --upgrade 'spark-binlog-load[connect]'`.",
        ) from error
    except PySparkException as error:
        if found is not None:
            found.client.close()
        raise PrerequisiteError(
            f"The Spark Connect server does not create a session: {str(error).strip().partition(chr(10))[0][:300]}",
            hint="Check that it runs, and `spark.remote`; the job retries.",
            server=remote.partition("/;")[0],
        ) from error
    return cast("SparkSession", found)


def _silence_query_logs() -> None:
    """Disable the loggers with which PySpark reports each SQL error before it raises it.

    Their handlers write JSON with the stack trace of Java to stderr, and do not mask secrets as the job's log does.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _retry_policy() -> Any:
    """Return a policy that ends after some 10 s: the job shows the fault then, and retries with a new session."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    return DefaultPolicy(max_retries=6, max_backoff=4000)


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _created_without_ml(settings: Mapping[str, str]) -> SparkSession | None:
    """Return the session of a new JVM, without the functions of Spark's library for machine learning.

    Spark finds them as a service and loads Scala's reflection for them: a fifth of the CPU time of a start. No SQL
    expression can call them. With any other extension, return None: Spark creates the session itself.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    jvm = context._jvm
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    providers = jvm.java.util.Collections.list(loader.getResources(_EXTENSIONS))
    if context._conf.contains("spark.sql.extensions") or any(_ML not in url.getPath() for url in providers):
        return None
    builder = jvm.org.apache.spark.sql.classic.SparkSession.builder().sparkContext(context._jsc.sc())
    thread.setContextClassLoader(jvm.java.lang.ClassLoader.getPlatformClassLoader())  # it finds no services of Spark
    try:
        builder.getOrCreate()  # becomes the default session, which PySpark takes; the context has the settings
    finally:
        thread.setContextClassLoader(loader)
    return SparkSession(context)


def _gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway


def running_jvm() -> Jvm | None:
    """Return the running JVM of this process. If it is dead, remove it from PySpark and return None."""
    jvm: Jvm | None = getattr(_gateway(), "__dict__", {}).get("jvm_process")
    if jvm is not None and jvm.is_alive:
        return jvm
    forget_jvm()
    return None


def _compiled(path: Path) -> bytes:
    """Return the compiled module, in the form whose source is not checked. Source: PEP 552."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # of this machine's cache, if it is there
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(path.read_bytes())
    return head + marshal.dumps(code)


def _write_packages(folder: Path) -> Path:
    """Write the project's packages into a zip file in ``folder``, and return its path."""
    archive = folder / "spark_binlog_load.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for path in sorted((_ROOT / package).rglob("*.py")):
                name = path.relative_to(_ROOT)
                file.write(path, name)
                # each new Python worker would compile what it imports; another version of Python ignores this
                file.writestr(f"{name}c", _compiled(path))
    return archive
