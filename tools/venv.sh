#!/bin/sh
# Makes .venv hold dlm_jax with one set of extras, at the versions in constraints.txt.
#
#   sh tools/venv.sh plot|dev|bench
#
# Does nothing when the last run with the same extras finished and pyproject.toml and
# constraints.txt are still the same. A .venv that was left half-built, or moved to another folder,
# is deleted and built again. PYTHON=python3.12 chooses the interpreter of a new .venv.
set -eu
cd "$(dirname "$0")/.."

extras=$1
venv=.venv
python=$venv/bin/python
unfinished=$venv/dlm-unfinished
inputs=$(cksum pyproject.toml constraints.txt)

say() { echo "$*" >&2; }

stamp_of() { echo "$venv/dlm-installed-$1"; }

is_usable() { # a Python that we support, with a pip that names this folder
  "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
    grep -qsF "$(pwd -P)/$venv/bin/" $venv/bin/pip
}

is_fresh() {
  [ ! -e $unfinished ] && [ "$(cat "$(stamp_of "$extras")" 2>/dev/null)" = "$inputs" ] && is_usable
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    if "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      echo "$PYTHON"
      return
    fi
    say "PYTHON=$PYTHON does not run as Python 3.11 or newer; name another or leave it out."
    return 1
  fi
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  say "No Python 3.11 to 3.14 found: python3 is $(python3 --version 2>&1 || true)."
  say "Install one (on Debian or Ubuntu: sudo apt-get install python3 python3-venv), or name it:"
  say "  make PYTHON=/path/to/python3.12 TARGET"
  return 1
}

install_ensurepip() { # Debian keeps ensurepip apart from Python, in pythonX.Y-venv
  say "This Python lacks ensurepip, so it cannot build a virtual environment: installing $1."
  apt-get update || say "apt-get update failed; trying with the package list as it is."
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$1"
}

make_venv() {
  base=$(find_python)
  version=$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  say "Building $venv with $base (Python $version)."
  mkdir $venv
  touch $unfinished

  if "$base" -c 'import ensurepip' 2>/dev/null; then
    "$base" -m venv $venv
  elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    install_ensurepip "python$version-venv"
    "$base" -m venv $venv
  elif "$base" -m pip --version >/dev/null 2>&1; then
    "$base" -m venv --without-pip $venv
    "$base" -m pip --python $python install pip
  else
    rm -rf $venv
    say "$base lacks ensurepip and pip, so it cannot build a virtual environment. Type:"
    say "  sudo apt-get install python$version-venv"
    say "and run make again."
    return 1
  fi
}

if is_fresh; then
  exit 0
fi
if [ -e $unfinished ] || { [ -e $venv ] && ! is_usable; }; then
  say "$venv is half-built, moved or does not run: building it again."
  rm -rf $venv
fi
if [ ! -e $venv ]; then
  make_venv
fi

touch $unfinished
say "Installing dlm_jax[$extras] into $venv. The first time this downloads a few hundred megabytes."
"$python" -m pip --disable-pip-version-check install --constraint constraints.txt --editable ".[$extras]"
echo "$inputs" >"$(stamp_of "$extras")"
if [ "$extras" = dev ]; then # dev contains plot
  echo "$inputs" >"$(stamp_of plot)"
fi
rm $unfinished
