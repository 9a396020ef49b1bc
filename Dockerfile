# TF Adapter on a slim Python, with PyTorch's and TensorFlow's CPU builds left to the choice of EXTRAS:
#   docker build --tag tf-adapter --build-arg EXTRAS=onnx,ascend .
#   docker run --rm --volume "$PWD:/models" tf-adapter atc --framework=5 --model=/models/net.onnx --output=/models/net
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source /source/ascend

FROM python:${PYTHON}-slim
ARG EXTRAS=onnx,ascend
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --find-links /wheels "tf-adapter[${EXTRAS}]" && rm -rf /wheels && tf-adapter env
# Compiled models are kept between runs where a volume is mounted here.
ENV NPU_CACHE_DIR=/cache
VOLUME /cache
CMD ["tf-adapter", "--help"]
