# The job in a container: Python, Java and the locked packages. The tests do not build it; see docs/how-to/containers.md.
FROM python:3.11.14-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
# optional packages, such as that of a Kafka source: docker build --build-arg PACKAGES=confluent-kafka==2.16.1
ARG PACKAGES=""
RUN if [ -n "$PACKAGES" ]; then pip install --no-cache-dir $PACKAGES; fi
COPY cdc cdc
COPY channels channels
COPY spark spark
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
 && useradd --create-home --uid 10001 cdc \
 && mkdir -p /data/state /data/warehouse \
 && chown -R cdc /data
USER cdc
ENV CDC_HOME=/data/state
VOLUME /data
# no supervisor is needed: the container engine restarts the process by its restart policy
ENTRYPOINT ["tini", "--", "cdc"]
CMD ["start", "/etc/cdc/job.yaml", "--foreground"]
