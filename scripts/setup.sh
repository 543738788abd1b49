# setup.sh - what quickstart and test share: packages of Debian 12, and the build. It is sourced in
# the root of the repository.

say() { printf '%s\n' "$*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else say "these packages are missing and there is no sudo: $*"; exit 2
  fi
}

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

# packages NAME…: installs those that are not there; quiet when all are.
packages() {
  local missing=() name
  for name in "$@"; do installed "$name" || missing+=("$name"); done
  [ ${#missing[@]} = 0 ] && return 0
  say "installing ${missing[*]}"
  local log; log=$(mktemp)
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
  if ! { as_root apt-get update && as_root "${install[@]}" "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    say "apt could not install ${missing[*]}"
    exit 2
  fi
  rm -f "$log"
}

BUILD_PACKAGES=(gcc g++ libc6-dev cmake ninja-build flex bison
                libdnnl-dev libjansson-dev libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev)

MPI_PACKAGES=(libopenmpi-dev openmpi-bin)     # for several CPU ranks; optional

# apt_mirror SUITE: prints the address from which apt has the packages of that suite of Debian.
apt_mirror() {
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' "Created-By: Packages" |
    sed -n "s/^$1 //p" | head -n 1
}

# build FOLDER [cmake options…] [-- targets…]: silent unless it fails.
build() {
  local folder=$1 log=$1/build.log options=() targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# -gt 0 ] && shift && targets=("$@")
  mkdir -p "$folder"
  if ! { cmake -S . -B "$folder" -G Ninja "${options[@]}" &&
         ninja -C "$folder" "${targets[@]}"; } >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    say "the build in $folder failed; its log is $log"
    return 1
  fi
}

# hf_python: prints a Python that has transformers, SentencePiece and TensorBoard, in a virtual
# environment outside the tree, made once; nothing if they cannot be installed.
hf_python() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/lmc-test/hf
  if ! [ -e "$folder/complete-2" ]; then
    say "installing transformers in $folder"
    rm -rf "$folder"
    /usr/bin/python3 -m venv --system-site-packages "$folder" >/dev/null 2>&1 &&
      "$folder/bin/pip" install -q transformers==4.40.2 sentencepiece==0.2.3 \
        tensorboard==2.16.2 >/dev/null 2>"$folder.log" &&
      touch "$folder/complete-2" ||
      { say "it cannot be installed ($folder.log): tests with transformers are skipped"; return 0; }
  fi
  echo "$folder/bin/python"
}

# hf_new_python: prints a Python that has a transformers of late 2025, and so each model type of
# examples/zoo; nothing if it cannot be installed. Its PyTorch is the one without CUDA if
# download.pytorch.org can be reached, else that of PyPI, which takes 5 GB.
hf_new_python() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/lmc-test/hf-new pip cpu
  pip=$folder/bin/pip cpu="--index-url https://download.pytorch.org/whl/cpu --retries 1"
  if ! [ -e "$folder/complete" ]; then
    say "installing transformers 4.57 in $folder"
    rm -rf "$folder"
    { /usr/bin/python3 -m venv "$folder" &&
      { $pip install -q $cpu torch==2.6.0 || $pip install -q torch==2.6.0; } &&
      $pip install -q transformers==4.57.1 numpy==2.2.6; } >"$folder.log" 2>&1 &&
      touch "$folder/complete" ||
      { say "it cannot be installed ($folder.log): newer models are skipped"; return 0; }
  fi
  echo "$folder/bin/python"
}

# peft_python: prints the Python of hf_python with PEFT beside transformers; nothing without it.
peft_python() {
  local python; python=$(hf_python)
  [ -n "$python" ] || return 0
  "$python" -c 'import jinja2, peft' 2>/dev/null ||
    "$python" -m pip install -q --no-deps \
      peft==0.11.1 accelerate==0.29.3 psutil==5.9.8 jinja2==3.1.6 markupsafe==3.0.3 2>/dev/null ||
    { say "PEFT cannot be installed: tests with it are skipped"; return 0; }
  echo "$python"
}

# optimizers_python: prints the Python of hf_python with schedulefree beside transformers, and the
# file of torch.optim.Muon, which Debian's torch does not have; nothing without them.
optimizers_python() {
  local python file folder; python=$(hf_python)
  [ -n "$python" ] || return 0
  folder=$(dirname "$(dirname "$python")")/muon
  file=$folder/torch/optim/_muon.py
  { "$python" -c 'import schedulefree' 2>/dev/null ||
    "$python" -m pip install -q --no-deps schedulefree==1.4.1 2>/dev/null; } &&
    { [ -e "$file" ] || muon_file "$python" "$folder"; } ||
    { say "schedulefree or Muon cannot be installed: tests with them are skipped"; return 0; }
  echo "$python $file"
}

# muon_file PYTHON FOLDER: takes _muon.py from the smallest package of torch that has it, that of
# another system; the file is Python alone.
muon_file() {
  "$1" -m pip download -q --no-deps --only-binary=:all: --platform macosx_11_0_arm64 \
    --python-version 3.11 -d "$2" torch==2.9.1 2>/dev/null &&
    "$1" -m zipfile -e "$2"/torch-*.whl "$2/all" &&
    mkdir -p "$2/torch/optim" && mv "$2/all/torch/optim/_muon.py" "$2/torch/optim/" &&
    rm -rf "$2/all" "$2"/torch-*.whl
}
