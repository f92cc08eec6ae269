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
logged() { journalctl -u sipd --no-pager --quiet -o cat --since "@$1" | grep -qF -- "$2"; }
# Restarts, however many starts there were in the last minutes.
restart() { systemctl reset-failed sipd && systemctl restart sipd; }
cgroup_file() { cat "/sys/fs/cgroup$(property ControlGroup)/$1"; }

# Writes settings that an emulated board needs and no real one does: it computes some twenty times slower.
slow_board() {
    mkdir -p "$DROP_INS"
    printf '[Service]\nWatchdogSec=%s\nTimeoutStartSec=600\nTimeoutStopSec=120\n' "$1" >"$DROP_INS/slow-board.conf"
}
