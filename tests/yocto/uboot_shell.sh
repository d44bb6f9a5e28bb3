# U-Boot's commands as far as the boot script uses them, as functions of a POSIX shell: the script's own text runs
# unchanged behind this prelude. $board is a folder: blocks/ (raw sectors, one file a copy) and slots/N/boot/ (what a
# partition holds); $at_ADDRESS is memory. A copy is text: its first line is the checksum's verdict.

nl='
'

# Reads a file into u_text, without starting another program: hundreds of starts are made in a test.
u_read() {
  u_text=
  [ -f "$1" ] || return 1
  while IFS= read -r u_line; do u_text=$u_text$u_line$nl; done < "$1"
}

setenv() {
  u_name=$1
  shift
  if [ $# -eq 0 ]; then unset "$u_name"; else eval "$u_name=\$*"; fi
}

env() {
  u_verb=$1 u_form=$2
  shift 2
  case "$u_verb $u_form" in
    "import -c")
      eval "u_text=\$at_$1"
      shift 2
      [ "${u_text%%"$nl"*}" = good ] || return 1
      u_take "$@"
      ;;
    "import -t")
      eval "u_text=\$at_$1"
      shift 2
      u_take "$@"
      ;;
    "export -c")
      u_address=$3 u_text=good$nl
      shift 3
      for u_name in "$@"; do
        eval "u_value=\${$u_name-}"
        [ -z "$u_value" ] || u_text=$u_text$u_name=$u_value$nl
      done
      eval "at_$u_address=\$u_text"
      ;;
    *) exit 90 ;;
  esac
}

# As U-Boot does with a list of names: what the text does not hold is unset.
u_take() {
  for u_name in "$@"; do
    u_rest=${nl}${u_text}
    unset "$u_name"
    case $u_rest in
      *"$nl$u_name="*)
        u_rest=${u_rest#*"$nl$u_name="}
        u_rest=${u_rest%%"$nl"*}
        [ -z "$u_rest" ] || setenv "$u_name" "$u_rest"
        ;;
    esac
  done
}

mmc() {
  case $1 in
    dev) return 0 ;;
    read)
      u_read "$board/blocks/$3" || return 1
      eval "at_$2=\$u_text"
      ;;
    write)
      # The power fails in the middle of this write, if the test wants it to.
      u_writes=$((${u_writes-0} + 1))
      if [ "$u_writes" = "${cut_at-0}" ]; then
        echo torn > "$board/blocks/$3"
        exit 40
      fi
      [ -z "${protected-}" ] || return 1
      eval "u_text=\$at_$2"
      printf %s "$u_text" > "$board/blocks/$3"
      ;;
    *) exit 90 ;;
  esac
}

load() {
  u_read "$board/slots/${2#*:}/$4" || return 1
  eval "at_$3=\$u_text"
  filesize=${#u_text}
}

part() { setenv "$4" "6d61676e-0${3#*:}"; }

fdt() {
  case $1 in
    addr) return 0 ;;
    get) if [ -n "${firmware_args-}" ]; then setenv "$3" "$firmware_args"; else return 1; fi ;;
  esac
}

booti() {
  eval "echo \"STARTED \$at_$1\""
  exit 0
}

reset() {
  echo RESET
  exit 41
}

sleep() { :; }

devtype=mmc devnum=0 ramdisk_addr_r=r kernel_addr_r=k fdt_addr_r=f fdtcontroladdr=c
