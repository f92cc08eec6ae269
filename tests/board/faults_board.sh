#!/bin/bash
# Runs on the board as root: what goes wrong while the daemon is installed, and the journal line that names it.
# /root/first.deb is the package, /root/tiny.gguf a model of a megabyte, /root/model.gguf one that is not kept whole.
source "$(dirname "$0")/board_steps.sh"
MODELS=/var/lib/sipd/models

# The daemon must end with 78, stay down, and say why: refused TEXT
refused() {
    local since
    since=$(now)
    systemctl reset-failed sipd 2>/dev/null || true
    ! systemctl start sipd || fail "the daemon started"
    expect_property ActiveState failed
    expect_property ExecMainStatus 78
    expect_property NRestarts 0
    logged "$since" "$1" || fail "the journal does not say: $1"
    journalctl -u sipd --no-pager --quiet -o cat --since "@$since" | grep "^sipd: " || true
}

step "Install, with a model of a megabyte"
dpkg --install /root/first.deb
cp /root/tiny.gguf "$MODELS/tiny.gguf"
slow_board 600
systemctl daemon-reload

step "sipd doctor"
write_settings "$MODELS/tiny.gguf"
sipd doctor || fail "the doctor finds a machine broken on which all the rest works"
sipd doctor /root/model.gguf --budget 160M

step "A wrong setting, a missing and a damaged model are not restarted"
printf 'max_request = 4\n' >/etc/sipd/sipd.toml
refused "max_request"
write_settings "$MODELS/none.gguf"
refused "none.gguf"
head -c 300000 /root/tiny.gguf >"$MODELS/half.gguf"
write_settings "$MODELS/half.gguf"
refused "half.gguf"

step "Killed: systemd starts it again, and the socket of the dead one is no obstacle"
write_settings "$MODELS/tiny.gguf"
restart
generate
pid=$(property MainPID)
kill -KILL "$pid"
wait_for 120 is_property NRestarts 1
wait_for 120 is_property ActiveState active
[[ "$(property MainPID)" != "$pid" ]]
generate

step "A second daemon on the same socket is refused"
since=$(now)
rc=0
sipd serve --listen unix:/run/sipd/sipd.sock || rc=$?
((rc == 78)) || fail "exit code $rc, wanted 78"
generate

step "A second model in a unit of its own"
printf 'model = "%s"\nmodel_name = "second"\n' "$MODELS/tiny.gguf" >/etc/sipd/second.toml
cp -r "$DROP_INS" /etc/systemd/system/sipd@second.service.d
systemctl daemon-reload
systemctl start sipd@second
sipc model --target unix:/run/sipd-second/sipd.sock
generate
systemctl stop sipd@second
[[ ! -e /run/sipd-second && -e /run/sipd/sipd.sock ]]

step "The engine is stuck while the event loop turns: the watchdog ends it"
slow_board 20
systemctl daemon-reload
restart
since=$(now) pid=$(property MainPID)
python3 /root/stop_threads.py "$pid" &
stopper=$!
wait_for 180 logged "$since" "Watchdog timeout"
# A process does not end before the one that traces its threads lets go of them.
kill "$stopper"
wait_for 180 is_property NRestarts 1
wait_for 180 is_property ActiveState active
journalctl -u sipd --no-pager --quiet -o cat --since "@$since" | grep -i watchdog
generate
slow_board 600
systemctl daemon-reload

step "The model file is cut off under the daemon"
cp /root/model.gguf "$MODELS/model.gguf"
write_settings "$MODELS/model.gguf"
printf '[Service]\nMemoryMax=160M\n' >"$DROP_INS/memory.conf"
systemctl daemon-reload
restart
generate
pid=$(property MainPID) since=$(now)
truncate --size=50M "$MODELS/model.gguf"
! generate "Twice" || fail "a request was served from half a file"
journalctl --no-pager --quiet -o json "$RECORDS" | tail -n 1 | grep -o '"SIPD_ERROR":"[A-Z_]*"'
[[ "$(journalctl --no-pager --quiet "$RECORDS" SIPD_ERROR=MODEL_FILE_CHANGED -o cat --since "@$since" | wc -l)" == 1 ]]
expect_property MainPID "$pid"
cp /root/model.gguf "$MODELS/model.gguf"
restart
generate

step "MemoryMax= is lowered while the daemon runs"
# In steps that leave room for what is in use and for huge pages that are not touched yet: below what is in use the
# kernel kills at once, and no daemon can prevent it.
pid=$(property MainPID) since=$(now)
for number in 1 2 3; do
    limit=$(($(cgroup_file memory.current) + 8 * 1024 * 1024))
    systemctl set-property --runtime sipd.service MemoryMax=$limit
    wait_for 60 has_events "$number" SIPD_EVENT=limit_lowered --since "@$since"
    sleep 3 # for what it gives back; there may be nothing
    echo "memory.max $limit: memory.current $(cgroup_file memory.current)"
done
generate "Third" || echo "refused, which is allowed"
expect_property ActiveState active
expect_property MainPID "$pid"
journalctl -u sipd --no-pager --quiet -o cat --since "@$since"
[[ "$(cgroup_file memory.events | sed -n 's/^oom_kill //p')" == 0 ]]
# A request is served again once there is memory.
systemctl set-property --runtime sipd.service MemoryMax=160M
wait_for 60 has_events 1 SIPD_EVENT=limit_raised --since "@$since"
generate "Fourth"

step "Stop"
systemctl stop sipd
expect_property Result success
echo "faults: all steps passed"
