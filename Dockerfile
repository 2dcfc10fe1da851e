# Headrace in a container, with Spark or, as --target slim, without. docs/deploy.md says how to build
# and run it.

# Any Debian or Ubuntu with Python 3.11 or later; JRE is a Java 17 or later under its name there.
ARG BASE=docker.io/library/debian:bookworm-slim


FROM ${BASE} AS python

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*


# What makes packages.
FROM python AS tools

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY requirements/build.lock /src/requirements/
RUN python3 -m venv /src/tools \
 && /src/tools/bin/python -m pip install --no-cache-dir --no-deps --require-hashes \
        --requirement /src/requirements/build.lock \
 && python3 -m venv --without-pip /opt/headrace


# The locked packages, each in a layer that stays until its lock file changes. The slim image does
# without what nothing in it imports: tests, headers, Arrow's Flight.
FROM tools AS slim-packages

COPY requirements/slim.lock /src/requirements/
RUN /src/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --require-hashes --requirement /src/requirements/slim.lock --wheel-dir /packages \
 && /src/tools/bin/python -m pip --python /opt/headrace/bin/python install --no-cache-dir \
        --no-deps --no-index /packages/*.whl \
 && rm -r /packages \
 && find /opt/headrace/lib -depth -type d \( -path '*/numpy/*tests' -o -path '*/pyarrow/tests' \
        -o -path '*/pyarrow/include' \) -exec rm -r {} + \
 && find /opt/headrace/lib -path '*/pyarrow/*flight*' -delete


FROM tools AS packages

COPY requirements/image.lock /src/requirements/
RUN /src/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --require-hashes --requirement /src/requirements/image.lock --wheel-dir /packages \
 && /src/tools/bin/python -m pip --python /opt/headrace/bin/python install --no-cache-dir \
        --no-deps --no-index /packages/*.whl \
 && rm -r /packages


# Headrace without its packages, its part in C compiled. The images copy it over theirs: where they
# mounted this stage, buildah 1.28 took an older state of it for one that was in its cache
# (containers/buildah, issues 4375 and 4522).
FROM tools AS package

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY headrace /src/headrace
RUN /src/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir /wheels /src \
 && /src/tools/bin/python -m pip --python /opt/headrace/bin/python install --no-cache-dir \
        --no-deps --no-index /wheels/*.whl


# What both images have in common.
FROM python AS common

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && groupadd --system --gid 10001 headrace \
 && useradd --system --uid 10001 --gid headrace --home-dir /var/lib/headrace --create-home headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STATE_DIRECTORY=/var/lib/headrace
WORKDIR /var/lib/headrace
# the metrics, and the admin API
EXPOSE 9464 9465
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
    CMD ["headrace", "health", "-c", "/etc/headrace/headrace.yaml"]
# tini ends what the processes of Spark leave behind
ENTRYPOINT ["/usr/bin/tini", "--", "headrace"]
CMD ["run", "-c", "/etc/headrace/headrace.yaml"]
LABEL org.opencontainers.image.title="Headrace" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/headrace/headrace" \
      org.opencontainers.image.documentation="https://github.com/headrace/headrace/blob/main/docs/deploy.md"


# Without Spark, Delta and Java: for processors in this process.
FROM common AS slim

COPY --from=slim-packages /opt/headrace /opt/headrace
COPY --from=package /opt/headrace /opt/headrace
VOLUME /var/lib/headrace
# by number, so that Kubernetes can tell that it is not root
USER 10001:10001
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.description="Inbound Kafka channels, exactly once, without Spark" \
      org.opencontainers.image.version="${VERSION}-slim" \
      org.opencontainers.image.revision="${REVISION}"


FROM common

ARG JRE=openjdk-17-jre-headless
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "${JRE}" \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=packages /opt/headrace /opt/headrace
COPY --from=package /opt/headrace /opt/headrace

# Spark's Kafka connector, checked by the sums in the package
RUN HEADRACE_CACHE=/tmp/cache /opt/headrace/bin/headrace connector fetch /opt/headrace/connector \
 && rm -r /tmp/cache
VOLUME /var/lib/headrace
# by number, as above
USER 10001:10001
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.description="Inbound Kafka channels, reduced by Spark, exactly once" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
