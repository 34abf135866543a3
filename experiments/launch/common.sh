# shellcheck shell=bash
# Shared by tpu_vm.sh, gke.sh and slurm.sh: settings, dry runs, quoting. Needs Bash 3.2 (macOS).

# Set by each script: its subcommands, their settings, the settings that all of them need, and the
# groups of settings GROUP.OPTION that are passed on.
subcommands='' names='' required='' groups='config'

# Every setting with its default.
# shellcheck disable=SC2034 # the scripts read them
{
  all_value_names='name config max_restarts project zone bucket accelerator capacity runtime worker'
  all_value_names+=' cluster image ssh_host directory nodes gpus time partition account python'
  all_value_names+=' modules apptainer pyxis mounts'
  name='' config='' max_restarts=30
  project='' zone='' bucket='' accelerator='' capacity=on-demand runtime='' worker=0
  cluster='' image=''
  ssh_host='' directory='' nodes='' gpus='' time='' partition='' account='' python=python3
  modules='' apptainer='' pyxis='' mounts=''
}

overrides=() # --config.FIELD=VALUE, for bertjax
# shellcheck disable=SC2034 # slurm.sh reads it
slurm_options=() # --OPTION=VALUE, for sbatch
dry_run=false
script=$(basename "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

fail() { # SENTENCE: a usage error
  printf '%s: %s\n' "$script" "$1" >&2
  exit 2
}

log() { # SENTENCE
  printf '%s %s: %s\n' "$(date '+%F %T')" "$script" "$1" >&2
}

launch() { # SUBCOMMAND FLAG...
  local subcommand=${1:-}
  [ -n "$subcommand" ] || fail "no subcommand. Use one of $subcommands; --help describes them."
  [ "$subcommand" != --help ] || usage
  is_one_of "$subcommand" "$subcommands" ||
    fail "'$subcommand': unknown subcommand. Use one of $subcommands."
  read_flags "${@:2}"
  # shellcheck disable=SC2086 # a list of names
  need $required
  "$subcommand"
}

usage() { # prints the comment at the top of the script
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit
}

# Commands

quote() { # WORD...: quoted for any shell
  local word gap='' single="'" escaped="'\\''"
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_@%+=:,./-]*) word="'${word//$single/$escaped}'" ;;
    esac
    printf '%s%s' "$gap" "$word"
    gap=' '
  done
}

execute() { # COMMAND...
  if $dry_run; then
    quote "$@"
    echo
  else
    "$@"
  fi
}

execute_pipe() { # COMMAND... '|' COMMAND...
  local left=()
  while [ "$1" != '|' ]; do
    left+=("$1")
    shift
  done
  shift
  if $dry_run; then
    printf '%s | %s\n' "$(quote "${left[@]}")" "$(quote "$@")"
  else
    "${left[@]}" | "$@"
  fi
}

send_source() { # COMMAND...: runs it with the committed files, a tar.gz, on its standard input
  if ! $dry_run && [ -n "$(git -C "$root" status --porcelain)" ]; then
    log "uncommitted changes in $root are not sent."
  fi
  execute_pipe git -C "$root" archive --format=tar.gz HEAD '|' "$@"
}

train_arguments() { # WORKDIR: prints the arguments of bertjax, quoted
  quote train --config "$config" --workdir "$1" ${overrides[@]+"${overrides[@]}"}
}

collect() { # from the bucket
  need_workdir
  execute mkdir -p "runs/$name"
  execute gcloud storage rsync "$workdir" "runs/$name" --recursive --project="$project"
}

# Settings

need() { # NAME...: fails if one is empty
  local item
  for item; do
    [ -n "${!item}" ] ||
      fail "$item: no value. Give --${item//_/-} VALUE, or --file FILE with a line '$item = VALUE'."
  done
}

need_workdir() { # in the bucket
  need name bucket
  case $bucket in
    gs://?*) workdir=${bucket%/}/runs/$name ;;
    *) fail "bucket='$bucket': not a bucket. Write gs://NAME." ;;
  esac
}

is_one_of() { # NAME NAMES
  local item
  for item in $2; do
    [ "$item" != "$1" ] || return 0
  done
  return 1
}

set_value() { # NAME VALUE
  case $2 in
    *$'\n'*) fail "$1: holds a line break. Write the value on one line." ;;
  esac
  case $1 in
    config.*)
      overrides+=("--$1=$2")
      return
      ;;
    sbatch.*)
      add_slurm_option "${1#sbatch.}" "$2"
      return
      ;;
    name)
      case $2 in
        */*) fail "name='$2': names a directory and a job. Write it without '/'." ;;
      esac
      ;;
    capacity)
      is_one_of "$2" 'on-demand spot reserved' ||
        fail "capacity='$2': unknown. Use on-demand, spot or reserved."
      ;;
    max_restarts | worker | nodes | gpus)
      case $2 in
        '' | *[!0-9]*) fail "$1='$2': not a whole number. Give one." ;;
      esac
      ;;
  esac
  printf -v "$1" %s "$2"
}

add_slurm_option() { # OPTION VALUE, which is empty for an option without one
  local setting=''
  case $1 in
    job-name) setting=name ;;
    gpus-per-node) setting=gpus ;;
    nodes | time | partition | account) setting=$1 ;;
    *[!a-z-]*) fail "sbatch.$1: not an option of sbatch. Write its long name without '--'." ;;
    output | open-mode | ntasks | ntasks-per-node | dependency | signal | array | wrap)
      fail "sbatch.$1: train.sbatch depends on its own value. Leave it out."
      ;;
  esac
  [ -z "$setting" ] || fail "sbatch.$1: a setting of its own. Write $setting = $2."
  slurm_options+=("--$1${2:+=$2}")
}

read_file() { # FILE: lines NAME = VALUE; nothing is expanded, so nothing needs quotes
  local line item value number=0
  [ -r "$1" ] || fail "$1: cannot be read. Give --file a file of lines 'NAME = VALUE'."
  while IFS=$' \t' read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%$'\r'}
    case $line in
      '' | '#'*) continue ;;
      *=*) ;;
      *) fail "$1:$number: '$line' has no '='. Write NAME = VALUE." ;;
    esac
    IFS=$' \t' read -r item <<<"${line%%=*}"
    IFS=$' \t' read -r value <<<"${line#*=}"
    case $item in
      config.?* | sbatch.?*) ;;
      *)
        is_one_of "$item" "$all_value_names" ||
          fail "$1:$number: '$item' is unknown. Use config.FIELD, sbatch.OPTION or one of \
$all_value_names."
        ;;
    esac
    set_value "$item" "$value"
  done <"$1"
}

read_flags() { # FLAG...: a flag takes precedence over the file
  local flag flags group settings=() i
  flags=${names//_/-}
  while [ $# -gt 0 ]; do
    flag=${1%%=*}
    case $flag in
      --help) usage ;;
      --dry-run)
        dry_run=true
        shift
        continue
        ;;
      --file) ;;
      *)
        group=${flag#--}
        case $flag in
          --*.?*) is_one_of "${group%%.*}" "$groups" ;;
          *) is_one_of "$flag" "--${flags// / --}" ;;
        esac || fail "'$1': unknown flag. Use --file, --dry-run, --${groups// /.OPTION, --}.OPTION, \
--${flags// /, --}."
        ;;
    esac
    if [ "$flag" != "$1" ]; then
      settings+=("${flag#--}" "${1#*=}")
      shift
    else
      [ $# -gt 1 ] || fail "$1: no value. Write $1 VALUE."
      settings+=("${1#--}" "$2")
      shift 2
    fi
  done
  for ((i = 0; i < ${#settings[@]}; i += 2)); do
    [ "${settings[i]}" != file ] || read_file "${settings[i + 1]}"
  done
  for ((i = 0; i < ${#settings[@]}; i += 2)); do
    case ${settings[i]} in
      file) ;;
      *.*) set_value "${settings[i]}" "${settings[i + 1]}" ;;
      *) set_value "${settings[i]//-/_}" "${settings[i + 1]}" ;;
    esac
  done
}
