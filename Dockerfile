# An image with the server, all extras, and no build tools:
#
#   docker build -t fairlane .
#   docker compose -f deploy/compose.yaml up
#
# docs/deployment.md explains it. The versions come from the lock, with hashes.

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY requirements/runtime.txt requirements/
RUN python -m venv /app && /app/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /app/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /app/bin/pip uninstall --yes --quiet editables hatchling pip

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin fairlane \
    && install -d -o fairlane -g fairlane -m 0700 /data
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/data \
    FAIRLANE_STORE=sqlite:////data/fairlane.db \
    FAIRLANE_HOST=0.0.0.0 \
    FAIRLANE_PORT=9867 \
    FAIRLANE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9867
# The server drains; stop it with --time longer than FAIRLANE_DRAIN_SECONDS.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['FAIRLANE_PORT'] + '/health/ready', timeout=4)"]
ENTRYPOINT ["fairlane"]
CMD ["serve"]
