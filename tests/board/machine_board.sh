#!/bin/bash
# Runs on the board as root: what a machine does around the daemon, and the journal line that names it.
# /root/first.deb is the package, /root/model.gguf a model that is not kept whole.
source "$(dirname "$0")/board_steps.sh"
DAY=86400

uptime_s() { cut -d. -f1 /proc/uptime; }
# The times in the record of a request are sane: expect_times ID TOKENS SECONDS
expect_times() {
    journalctl --no-pager --quiet -o json "$RECORDS" SIPD_REQUEST_ID="$1" | python3 -c '
import json, sys
record, (tokens, seconds) = json.loads(sys.stdin.read()), map(int, sys.argv[1:])
first, total = float(record["SIPD_FIRST_TOKEN_S"]), float(record["SIPD_TOTAL_S"])
print(record["MESSAGE"], record["SIPD_QUEUE_S"], first, total, "within", seconds)
assert int(record["SIPD_COMPLETION_TOKENS"]) == tokens, record
assert 0 <= float(record["SIPD_QUEUE_S"]) <= first <= total <= seconds + 1, record' "$2" "$3"
}
is_announced() {
    avahi-browse --resolve --terminate --parsable _sipd._tcp | grep '^=.*;50051;.*"id=sipd"' >/dev/null
}

step "Install, in a slice of its own with 400 MB"
dpkg --install /root/first.deb
cp /root/model.gguf /var/lib/sipd/models/model.gguf
write_settings /var/lib/sipd/models/model.gguf
slow_board 600
printf '[Service]\nSlice=models.slice\nMemoryMax=160M\n' >"$DROP_INS/memory.conf"
printf '[Slice]\nMemoryMax=400M\nMemorySwapMax=0\n' >/etc/systemd/system/models.slice
systemctl daemon-reload
systemctl start sipd
generate
pid=$(property MainPID)

step "The kernel kills another process of the slice in the middle of a reply: it goes on"
since=$(now)
begin "Once" 8
rc=0
systemd-run --quiet --wait --unit=hog --slice=models.slice \
    python3 -c 'held = []
while True:
    held.append(b"x" * (1 << 22))' || rc=$?
[[ "$(systemctl show hog --property=Result --value)" == oom-kill ]] || fail "the hog was not killed: $rc"
wait "$client" || fail "the request did not survive it"
journalctl -k --no-pager --quiet -o cat | grep "Memory cgroup out of memory" || true
wait_for 30 has_events 1 SIPD_EVENT=oom_kill SIPD_CGROUP=/sys/fs/cgroup/models.slice --since "@$since"
event oom_kill
expect_property MainPID "$pid"
generate "Twice"

step "The clock jumps a day ahead and back in the middle of a reply: nobody notices but the journal"
began=$(uptime_s)
begin "Third" 12 --deadline 600 --request-id forth-and-back
date --set "+1 day"
wait_for 30 has_events 1 SIPD_EVENT=clock_jumped SIPD_SECONDS=$DAY
event clock_jumped
kill -0 "$client" || fail "the reply ended before the clock was set back"
date --set "-1 day"
wait_for 30 has_events 1 SIPD_EVENT=clock_jumped SIPD_SECONDS=-$DAY
event clock_jumped
wait "$client" || fail "the request did not survive it"
expect_times forth-and-back 12 $(($(uptime_s) - began))
expect_property MainPID "$pid"
expect_property NRestarts 0

step "A clock that is set back does not put a deadline off"
date --set "+1 day"
began=$(uptime_s)
begin "Fourth" 500 --deadline 20 --request-id late
date --set "-1 day"
! wait "$client" || fail "the deadline passed unnoticed"
seconds=$(($(uptime_s) - began))
cat /root/answer
grep -q DEADLINE_EXCEEDED /root/answer || fail "the client was not told the reason"
((seconds >= 19 && seconds < 60)) || fail "it ended after $seconds s, wanted 20"
wait_for 30 has_records 1 SIPD_REQUEST_ID=late SIPD_FINISH_REASON=deadline
expect_property MainPID "$pid"

step "Announced on the LAN"
command -v avahi-browse >/dev/null || fail "the board has no avahi: make its image with --include avahi-daemon,avahi-utils"
systemctl start avahi-daemon
avahi-browse --resolve --terminate --parsable _sipd._tcp | is_not grep "^=" || fail "announced before it was asked for"
install_doc sipd.avahi.service /etc/avahi/services/sipd.service
wait_for 60 is_announced
avahi-browse --resolve --terminate --parsable _sipd._tcp
journalctl -u avahi-daemon --no-pager --quiet -o cat | grep 'sipd.service) successfully established'

step "Stop"
systemctl stop sipd
expect_property Result success
echo "machine: all steps passed"
