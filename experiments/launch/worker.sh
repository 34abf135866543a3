#!/usr/bin/env bash
# Run by tpu_vm.sh on each worker of a slice, in the directory of the code.
#
# setup                  installs bertjax
# start WORKDIR ARG...   starts `bertjax ARG...` as a service, unless it runs
# status                 prints running, idle, stopped or the exit status; host; last line of the log
# stop                   lets training save and exit
# serve                  body of the service
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

setup() {
  # The machines may have an older Python than bertjax needs; uv installs its own.
  python3 -m pip install --user --quiet uv
  local uv=$HOME/.local/bin/uv
  "$uv" venv --quiet --allow-existing --python 3.12 .venv
  "$uv" pip install --quiet --python .venv/bin/python -c constraints.txt -e '.[tpu]'
}

start() {
  if runs; then
    echo "$(hostname): training is already running."
    return
  fi
  # A file, because systemd expands $ in the arguments of a service.
  printf 'workdir=%q\narguments=(%s)\n' "$1" "$(printf '%q ' "${@:2}")" >launched.sh
  echo 137 >exit_status # stays there if the run is killed
  rm -f stopped
  sudo systemctl reset-failed bertjax.service 2>/dev/null || true
  # A service outlives this connection, and there is at most one. Before the machine shuts down, this
  # script gets SIGTERM while the network is up, and passes it to the training. The default limits of
  # locked memory and open files are too low for drivers.
  sudo systemd-run --quiet --unit=bertjax.service --uid="$(id -un)" \
    --working-directory="$PWD" --setenv=PATH="$PATH" --property=After=network.target \
    --property=KillMode=mixed --property=TimeoutStopSec=300 \
    --property=LimitMEMLOCK=infinity --property=LimitNOFILE=65536 \
    /bin/bash experiments/launch/worker.sh serve
}

runs() {
  case $(systemctl is-active bertjax.service) in
    active | activating | deactivating | reloading) ;;
    *) return 1 ;;
  esac
}

serve() {
  local workdir arguments training stopped copying status
  # shellcheck source=/dev/null
  source ./launched.sh
  training='' stopped=''
  trap 'stopped=1; [ -z "$training" ] || kill -TERM "$training" || true' TERM
  .venv/bin/bertjax "${arguments[@]}" >>train.log 2>&1 &
  training=$!
  [ -z "$stopped" ] || kill -TERM "$training" # the signal came first
  while sleep 60; do copy_log; done >/dev/null 2>&1 &
  copying=$!
  while kill -0 "$training" 2>/dev/null; do
    wait "$training" || true # a signal ends wait too
  done
  wait "$training" && status=0 || status=$?
  kill "$copying"
  copy_log
  echo "$status" >exit_status
  exit "$status"
}

copy_log() {
  gcloud storage cp --quiet train.log "$workdir/logs/$(hostname).log" || true
}

status() {
  local state=idle
  if runs; then
    state=running
  elif [ -f stopped ]; then
    state=stopped
  elif [ -f exit_status ]; then
    state=$(cat exit_status)
  fi
  printf '%s\t%s\t%s\n' "$state" "$(hostname)" "$(tail -n 1 train.log 2>/dev/null || true)"
}

stop() {
  touch stopped
  sudo systemctl stop bertjax.service
}

"$@"
