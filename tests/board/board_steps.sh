# shellcheck shell=bash
# Sourced by the scripts that run on the board as root: steps, waits and checks. The first failure ends the run.
set -euo pipefail
RECORDS=MESSAGE_ID=5d0c6d1a1f5b4a2f9a6f0e4c3b7d9e21
DROP_INS=/etc/systemd/system/sipd.service.d

step() { printf '\n== %s: %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*"
    systemctl status sipd --no-pager --lines=0 || true
    journalctl -u sipd --no-pager --lines=40 || true
    exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

# Repeats a command each second until it succeeds: wait_for SECONDS COMMAND...
wait_for() {
    local seconds=$1 end
    shift
    end=$((SECONDS + seconds))
    until "$@"; do
        ((SECONDS < end)) || fail "after $seconds s not true: $*"
        sleep 1
    done
}
property() { systemctl show sipd.service --property="$1" --value; }
is_property() { [[ "$(property "$1")" == "$2" ]]; }
expect_property() { is_property "$1" "$2" || fail "$1 is $(property "$1"), wanted $2"; }
now() { date +%s; }
is_not() { ! "$@"; }
write_settings() { printf 'model = "%s"\n' "$1" >/etc/sipd/sipd.toml; }
# One of the package's documents; dpkg itself may be told to leave them out: install_doc NAME TO
install_doc() { dpkg-deb --fsys-tarfile /root/first.deb | tar -xO --wildcards "*/usr/share/doc/sipd/$1" >"$2"; }
# generate [TEXT [TOKENS [OPTION...]]]
generate() { sipc generate --target unix:/run/sipd/sipd.sock "${1:-Once}" --max-tokens "${2:-2}" "${@:3}"; }
# Generates in the background until there is a first token; then $client can be waited for: begin [TEXT [TOKENS...]]
begin() {
    rm -f /root/reply
    generate "$@" >/root/reply 2>/root/answer &
    client=$!
    wait_for 120 test -s /root/reply
}

n_records() { journalctl --no-pager --quiet -o cat "$RECORDS" "$@" | wc -l; }
has_records() {
    local wanted=$1
    shift
    (("$(n_records "$@")" >= wanted))
}
has_events() {
    local wanted=$1
    shift
    (("$(journalctl -u sipd --no-pager --quiet -o cat "$@" | wc -l)" >= wanted))
}
n_events() { journalctl -u sipd --no-pager --quiet -o cat SIPD_EVENT="$1" "${@:2}" | wc -l; }
# Prints the latest event of a kind, which must have the identifier that is documented: event NAME
declare -A MESSAGE_IDS=([storage_fault]=4 [oom_kill]=a [snapshot_failed]=e [clock_jumped]=f)
event() {
    journalctl -u sipd --no-pager --quiet -o json SIPD_EVENT="$1" | tail -n 1 | python3 -c '
import json, sys
event = json.loads(sys.stdin.read())
print({key: value for key, value in event.items() if key == "MESSAGE" or key.startswith("SIPD_")})
assert event["MESSAGE_ID"] == sys.argv[1], sys.argv' "8f1d1ee1f3d54e6a9d0f2c7be2a4c60${MESSAGE_IDS[$1]}"
}
# Prints the lines that hold a text; there must be one: lines SINCE TEXT
lines() {
    journalctl -u sipd --no-pager --quiet -o cat --since "@$1" | grep -F -- "$2" || fail "the journal does not say: $2"
}
logged() { journalctl -u sipd --no-pager --quiet -o cat --since "@$1" | grep -qF -- "$2"; }
# Restarts, however many starts there were in the last minutes.
restart() { systemctl reset-failed sipd && systemctl restart sipd; }
cgroup_file() { cat "/sys/fs/cgroup$(property ControlGroup)/$1"; }

# Writes settings that an emulated board needs and no real one does: it computes some twenty times slower.
slow_board() {
    mkdir -p "$DROP_INS"
    printf '[Service]\nWatchdogSec=%s\nTimeoutStartSec=600\nTimeoutStopSec=120\n' "$1" >"$DROP_INS/slow-board.conf"
}
