# Sourced by the other scripts. `setup run` or `setup dev` prepares .venv and sets $python,
# `install` prepares a folder with its own lock file, and `setup_tests` does both for everything
# that the tests need. Each step is skipped until its lock file changes.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case $(uname -s) in
  MINGW* | MSYS*) bin=Scripts ;;  # Git Bash on Windows
  *) bin=bin ;;
esac
python=.venv/$bin/python
PATH=$PWD/.venv/$bin:$PATH  # the stub CLI is a Python program too

setup() {
  # The development lock includes everything needed to run.
  if is_ready "$1" || { [ "$1" = run ] && is_ready dev; }; then return; fi
  "$python" -m pip --version >/dev/null 2>&1 || create_venv
  echo "Installing scripts/lock/$1.txt ..." >&2
  pip install --require-hashes -r "scripts/lock/$1.txt"
  pip install --no-deps --no-build-isolation --editable .
  fingerprint "$1" >".venv/$1.stamp"
}

is_ready() {
  [ -x "$python" ] && [ "$(cat ".venv/$1.stamp" 2>/dev/null)" = "$(fingerprint "$1")" ]
}

fingerprint() {
  cat "scripts/lock/$1.txt" pyproject.toml | cksum
}

create_venv() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "Setting up .venv with $("$candidate" --version) ..." >&2
      rm -rf .venv
      "$candidate" -m venv .venv
      return
    fi
  done
  echo "Python 3.11 or newer is required, but none was found. Set PYTHON to its path." >&2
  exit 1
}

pip() {
  "$python" -m pip --disable-pip-version-check -qq "$@"
}

has_node() {
  command -v npm >/dev/null && node -e 'process.exit(+(process.versions.node.split(".")[0] < 20))'
}

# install DIR LOCK COMMAND...: run COMMAND in DIR unless this version of LOCK is already installed.
install() {
  if ! cmp -s "$1/$2" "$1/.installed-$2"; then
    echo "Installing $1/$2 ..." >&2
    (cd "$1" && "${@:3}")
    cp "$1/$2" "$1/.installed-$2"
  fi
}

setup_tests() {
  setup dev
  install tests/clients mcp1.txt install_mcp1_client
  if has_node; then
    install tests/real-cli package-lock.json npm ci --silent
    # Not `npm ci`: it rejects a lock file without URLs that contains packages for other platforms.
    install tests/clients package-lock.json npm install --no-save --silent
    setup_renderers
  else
    echo "SKIPPED: tests with the real gemini CLI, TypeScript clients and Markdown renderers need Node 20 or newer with npm." >&2
  fi
}

setup_renderers() {
  install tests/renderers package-lock.json npm install --no-save --silent
}

install_mcp1_client() {
  "$OLDPWD/$python" -m venv .venv
  ".venv/$bin/python" -m pip --disable-pip-version-check -qq install --require-hashes -r mcp1.txt
}
