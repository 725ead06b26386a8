# The worker image for engines that start Beam's SDK harness in a container (Dataflow, Flink with
# --environment_type=DOCKER). Not built where this project is tested so far: there is no container
# engine there. What a worker needs is below; the engines' own set-up is documented with them.
FROM apache/beam_python3.11_sdk:2.77.0

WORKDIR /opt/snapshard
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt . \
    && pip check \
    && useradd --create-home --uid 10001 snapshard

# Decoding logs nothing below a warning, and no worker hashes strings by a seed of its own.
ENV TF_CPP_MIN_LOG_LEVEL=2 \
    PYTHONHASHSEED=0

WORKDIR /tmp
USER snapshard
# The entry point stays the base image's: /opt/apache/beam/boot.
