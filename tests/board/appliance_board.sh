#!/bin/bash
# Runs on the board as root: the life of an installation, from the first package to the purge.
# /root/first.deb and /root/second.deb are two versions, /root/model.gguf the model, /root/server.{crt,key} for TLS; a host
# answers the lines "@host".
source "$(dirname "$0")/board_steps.sh"
N_REQUESTS=$1

step "Install"
dpkg --install /root/first.deb
sipd version
systemctl cat sipd.service >/dev/null
is_property ActiveState inactive || fail "the package started a daemon that has no model"
getent group sipd
journalctl --list-catalog 5d0c6d1a1f5b4a2f9a6f0e4c3b7d9e21

step "Configure: 160 MB of memory, a LAN address with TLS, a token; only root can read the secrets"
cp /root/model.gguf /var/lib/sipd/models/model.gguf
install -D -m 644 /root/server.crt /etc/sipd/tls/server.crt
install -D -m 600 /root/server.key /etc/sipd/tls/server.key
sipd token new host --file /etc/sipd/tokens >/root/token
chmod 600 /etc/sipd/tokens
chmod 644 /root/token
cat >/etc/sipd/sipd.toml <<TOML
model = "/var/lib/sipd/models/model.gguf"
listen = ["unix:/run/sipd/sipd.sock", "0.0.0.0:50051"]
tls_cert = "/etc/sipd/tls/server.crt"
tls_key = "/run/credentials/sipd.service/server.key"
token_file = "/run/credentials/sipd.service/tokens"
TOML
slow_board 600
printf '[Service]\nMemoryMax=160M\n' >"$DROP_INS/memory.conf"
printf '[Service]\nLoadCredential=server.key:/etc/sipd/tls/server.key\nLoadCredential=tokens:/etc/sipd/tokens\n' \
    >"$DROP_INS/lan.conf"
systemctl daemon-reload

step "Start"
systemctl enable --now sipd
systemctl status sipd --no-pager --lines=0
expect_property MemoryMax $((160 * 1024 * 1024))
systemd-analyze security --no-pager --threshold=20 sipd.service | tail -n 1

step "Who may use the socket"
ls -ld /run/sipd /run/sipd/sipd.sock
[[ "$(stat -c '%a %G' /run/sipd/sipd.sock)" == "660 sipd" ]]
useradd --groups sipd member
useradd stranger
chmod 711 /root
runuser -u member -- sipc status --target unix:/run/sipd/sipd.sock --token-file /root/token
if runuser -u stranger -- sipc status --target unix:/run/sipd/sipd.sock --token-file /root/token; then
    fail "a user outside the group reached the socket"
fi

step "$N_REQUESTS requests from the host, after one without a token"
echo "@host generate $N_REQUESTS $(cat /root/token)"
wait_for 1500 has_records "$N_REQUESTS" SIPD_FINISH_REASON=length
peak=$(cgroup_file memory.peak) limit=$(cgroup_file memory.max)
echo "memory.peak $peak of memory.max $limit; memory.events $(cgroup_file memory.events | tr '\n' ' ')"
((peak < limit)) || fail "memory.peak $peak reached memory.max $limit"
[[ "$(cgroup_file memory.events | sed -n 's/^oom_kill //p')" == 0 ]]
[[ "$(property NRestarts)" == 0 ]]

step "The record of the last one"
request=$(journalctl --quiet -o json "$RECORDS" | tail -n 1 | python3 -c '
import json, sys
record = json.load(sys.stdin)
print(record["SIPD_REQUEST_ID"])
print(json.dumps({key: value for key, value in sorted(record.items()) if key[0] != "_"}, indent=1), file=sys.stderr)
assert record["SIPD_FINISH_REASON"] in ("stop", "length"), record
assert int(record["SIPD_STREAMED_BYTES"]) > 0 and int(record["SIPD_CGROUP_PEAK"]) > 0, record')
[[ "$(journalctl --quiet -o cat SIPD_REQUEST_ID="$request" | wc -l)" == 1 ]]
journalctl --quiet -x SIPD_REQUEST_ID="$request"

step "Reload, stop, start again"
systemctl reload sipd
expect_property ActiveState active
systemctl stop sipd
expect_property Result success
expect_property ExecMainStatus 0
[[ ! -e /run/sipd ]]
systemctl start sipd
runuser -u member -- sipc generate --target unix:/run/sipd/sipd.sock --token-file /root/token "Hello" --max-tokens 2

step "Upgrade"
before=$(sha256sum /etc/sipd/sipd.toml) pid=$(property MainPID)
dpkg --install /root/second.deb
dpkg-query --show sipd
[[ "$(sha256sum /etc/sipd/sipd.toml)" == "$before" ]] || fail "the configuration was changed"
[[ "$(property MainPID)" != "$pid" ]] || fail "the daemon was not restarted"
expect_property ActiveState active
runuser -u member -- sipc generate --target unix:/run/sipd/sipd.sock --token-file /root/token "Hello" --max-tokens 2

step "Remove"
dpkg --remove sipd
is_property ActiveState inactive || fail "the daemon still runs"
[[ -e /etc/sipd/sipd.toml && -e /var/lib/sipd/models/model.gguf ]] || fail "remove took the configuration or a model"

step "Purge"
rm -r "$DROP_INS"
dpkg --purge sipd
left=$(find / -xdev -ipath '*sipd*' ! -path '/proc/*' ! -path '/root/*' ! -path '/tmp/*' ! -path '/var/lib/systemd/catalog/*')
[[ -z "$left" ]] || fail "purge left $left"
! systemctl list-units --all --no-legend 'sipd*' | grep -v not-found
echo "appliance: all steps passed"
