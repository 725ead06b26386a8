# Two images with the same environment:
#   docker build --target worker -t WORKER .       what runs on Dataflow's and Flink's machines
#   docker build --target launcher -t LAUNCHER .   what a Flex Template starts (docs/dataflow.md)
# Neither was built where this project is tested, since there is no container engine there. A test
# checks this file and runs the steps of its first stage (tests/test_dockerfile.py).

# Beam's own image, of the version in constraints.txt: it has the program that starts workers, and
# compilers and headers for packages without a wheel. Only two of its folders are copied on.
FROM apache/beam_python3.11_sdk:2.77.0 AS install
WORKDIR /src
COPY . .
RUN python -m venv /opt/snapshard \
    && /opt/snapshard/bin/pip install --no-cache-dir --constraint constraints.txt ".[audio,s3,sql,text]" \
    && /opt/snapshard/bin/pip check \
    && printf 'from snapshard.pipelines.operate.flex_template import main\n\nmain()\n' > /opt/snapshard/launch.py

# The same Python at the same path, which the environment's links point to.
FROM python:3.11-slim-bookworm AS runtime
COPY --from=install /opt/apache/beam /opt/apache/beam
COPY --from=install /opt/snapshard /opt/snapshard
# Workers run in this environment, not in one that they would create at start in a folder owned by
# root. Decoding logs only warnings and errors, and all workers hash strings with the same seed.
ENV PATH="/opt/snapshard/bin:$PATH" \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1 \
    TF_CPP_MIN_LOG_LEVEL=2 \
    PYTHONHASHSEED=0
RUN useradd --create-home --uid 10001 snapshard
# Beam's program writes a job's options into the folder that it starts in.
WORKDIR /tmp

FROM runtime AS launcher
COPY --from=gcr.io/dataflow-templates-base/python311-template-launcher-base:20230622_RC00 \
    /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/snapshard/launch.py
# Google's launcher runs as root: it writes to /var/log/dataflow, and fails if it cannot.
USER root
ENTRYPOINT ["/opt/google/dataflow/python_template_launcher"]

# A build without --target makes the last stage.
FROM runtime AS worker
USER snapshard
ENTRYPOINT ["/opt/apache/beam/boot"]
