#!/usr/bin/env bash
# Trains on the nodes of a Slurm cluster, one process a node.
#
#   slurm.sh SUBCOMMAND [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# setup    copies the committed code to a shared directory and installs it
# run      queues training, which queues itself again if it was stopped early
# logs     follows the log
# status   prints the state of the job
# stop     lets training save and exit
# collect  copies the run to runs/NAME
#
# Settings: name, directory, nodes, config; ssh_host (USER@HOST of Slurm; local without one), gpus (of a
# node), time (such as 2-00:00:00), partition, account, modules (for `module load`), python (python3),
# apptainer or pyxis (an image in which bertjax is installed and trained), mounts (SOURCE:TARGET,... of
# the image, besides the directory), max_restarts (30). sbatch.OPTION is any other option of sbatch,
# such as sbatch.gres; an empty value is for options without one.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

subcommands='setup run logs status stop collect'
names='name directory nodes config ssh_host gpus time partition account modules python'
names+=' apptainer pyxis mounts max_restarts'
required='name directory'
groups='config sbatch'

remote_shell() { # LINE: sets the array `shell` to a command that runs it on the cluster
  shell=(bash -c "$1")
  [ -z "$ssh_host" ] || shell=(ssh "$ssh_host" "$1")
}

on_cluster() { # LINE of shell
  remote_shell "$1"
  execute "${shell[@]}"
}

job_flags() { # sets the array `flags`: what a job of a node needs, for sbatch and srun
  flags=()
  [ -z "$gpus" ] || flags+=(--gpus-per-node="$gpus")
  [ -z "$time" ] || flags+=(--time="$time")
  [ -z "$partition" ] || flags+=(--partition="$partition")
  [ -z "$account" ] || flags+=(--account="$account")
  flags+=(${slurm_options[@]+"${slurm_options[@]}"})
}

find_container() { # sets the array `container`: words after srun that run a command in the image
  container=()
  [ -z "$apptainer" ] || [ -z "$pyxis" ] ||
    fail "apptainer='$apptainer', pyxis='$pyxis': two images. Give one of them."
  if [ -z "$apptainer$pyxis" ]; then
    [ -z "$mounts" ] || fail "mounts='$mounts': there is no image. Give apptainer or pyxis."
    return
  fi
  case $directory in
    /*) ;;
    *) fail "directory='$directory': a relative path cannot be mounted in an image. Write it from /." ;;
  esac
  local mount="$directory:$directory${mounts:+,$mounts}"
  if [ -n "$apptainer" ]; then
    container=(apptainer exec --nv --bind "$mount" --pwd "$directory" "$apptainer")
  else
    container=(--container-image="$pyxis" --container-mounts="$mount"
      --container-workdir="$directory")
  fi
}

setup() {
  local target line container flags
  find_container
  target=$(quote "$directory")
  remote_shell "mkdir -p $target && tar -xz -C $target"
  send_source "${shell[@]}"
  line="cd $target && $(quote "$python" -m venv .venv) && \
$(quote .venv/bin/pip install --quiet -c constraints.txt -e '.[gpu]')"
  # An image's Python exists only there.
  [ -z "$apptainer" ] || line=$(quote "${container[@]}" bash -c "$line")
  if [ -n "$pyxis" ]; then
    job_flags
    line=$(quote srun --nodes=1 --ntasks=1 ${flags[@]+"${flags[@]}"} "${container[@]}" \
      bash -c "$line")
  fi
  if [ -n "$modules" ]; then
    # Login shells define `module`.
    # shellcheck disable=SC2086 # a list of names
    line=$(quote bash -lc "$(quote module load $modules) && $line")
  fi
  on_cluster "$line"
}

run() {
  need nodes config
  local target container flags
  find_container
  job_flags
  target=$(quote "$directory/runs/$name")
  on_cluster "mkdir -p $target && cd $target && \
$(quote sbatch --job-name="$name" --nodes="$nodes" ${flags[@]+"${flags[@]}"} \
    ../../experiments/launch/train.sbatch "$max_restarts" "$modules" \
    ${container[@]+"${container[@]}"} --) $(train_arguments "runs/$name")"
}

logs() {
  on_cluster "$(quote tail -n 100 -F "$directory/runs/$name/slurm.log")"
}

status() {
  on_cluster "$(quote squeue --me --name="$name") && \
$(quote tail -n 5 "$directory/runs/$name/slurm.log")"
}

stop() {
  # --full signals the job's script too, which then does not queue itself again.
  on_cluster "$(quote scancel --me --name="$name" --state=PENDING) ; \
$(quote scancel --me --name="$name" --full --signal=TERM)"
}

collect() {
  remote_shell "$(quote tar -cz -C "$directory/runs/$name" .)"
  execute mkdir -p "runs/$name"
  execute_pipe "${shell[@]}" '|' tar -xz -C "runs/$name"
}

launch "$@"
