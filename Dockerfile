# syntax=docker/dockerfile:1
# Two servers from one file:
#   docker build --target cpu -t duotone:cpu .      the bundled voice on any CPU
#   docker build --target gpu -t duotone:gpu .      published checkpoints on a GPU, with stock vLLM
#   docker run -p 8000:8000 duotone:cpu
#   docker run --gpus all --shm-size 1g -p 8000:8000 -v duotone-models:/models duotone:gpu
# What follows the image's name replaces the model and the profile: MODEL --config PROFILE --set KEY=VALUE …

FROM python:3.12-slim-bookworm AS package
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .


FROM python:3.12-slim-bookworm AS cpu
# PyTorch's index of CPU builds as PIP_EXTRA_INDEX_URL makes this image some gigabytes smaller.
ARG PIP_EXTRA_INDEX_URL
RUN useradd --create-home --uid 10001 duotone
COPY requirements.txt /tmp/
RUN pip install --no-cache-dir -r /tmp/requirements.txt
COPY --from=package /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl
ENV HF_HOME=/models PYTHONUNBUFFERED=1
RUN mkdir /models && chown duotone /models
VOLUME /models
USER 10001
WORKDIR /home/duotone
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["duotone", "serve", "--host", "0.0.0.0"]


FROM nvidia/cuda:13.0.1-base-ubuntu24.04 AS gpu
# Triton and torch.compile build their kernels at start with the system's compiler and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ python3 python3-dev python3-venv \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 10001 duotone \
  && python3 -m venv /opt/duotone
ENV PATH=/opt/duotone/bin:$PATH
# vLLM's own pins rule here; it is a layer of its own since it is large and seldom changes.
RUN pip install --no-cache-dir vllm==0.29.0
COPY --from=package /wheels /tmp/wheels
# hadolint ignore=DL3013
RUN set -- /tmp/wheels/*.whl && pip install --no-cache-dir "$1[vllm]"
# Models, and what was compiled for them, outlive the container in one volume.
ENV HF_HOME=/models VLLM_CACHE_ROOT=/models/vllm TRITON_CACHE_DIR=/models/triton PYTHONUNBUFFERED=1
RUN mkdir /models && chown duotone /models
VOLUME /models
USER 10001
WORKDIR /home/duotone
EXPOSE 8000
# A first start downloads a model and compiles: minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["duotone", "serve", "--host", "0.0.0.0"]
CMD ["Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "--config", "one_gpu"]
