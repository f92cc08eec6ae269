#!/bin/bash
# Runs on the board as root: disks that fail under the daemon, and the journal line that names it.
# /root/first.deb is the package, /root/tiny.gguf a model of a megabyte; /root/disk.img holds a file system labelled
# "models" with model.gguf, which is not kept whole. It plays the USB disk, on the disk that brought these files.
source "$(dirname "$0")/board_steps.sh"
MODELS=/mnt/models
SMALL=/mnt/small

n_snapshots() { find "$SMALL" -name '*.kv' | wc -l; }
has_snapshots() { (("$(n_snapshots)" == $1)); }
long_text() { for _ in {1..40}; do printf '%s ' "$1"; done; }
attach() {
    wait_for 60 test -b /dev/vdb
    python3 /root/partition.py add root/disk.img
}

step "Install, with the model on a USB disk"
command -v udevadm >/dev/null || fail "the board has no udev: make its image with --include udev"
rm /root/disk.img
dpkg --install /root/first.deb
slow_board 600
printf '[Service]\nMemoryMax=160M\n' >"$DROP_INS/memory.conf"
install_doc drop-ins/usb-disk.conf "$DROP_INS/usb-disk.conf"
mkdir "$MODELS"
device='dev-disk-by\x2dlabel-models.device'
printf 'LABEL=models %s ext4 ro,x-systemd.wanted-by=%s 0 0\n' "$MODELS" "$device" >>/etc/fstab
write_settings "$MODELS/model.gguf"
systemctl daemon-reload
systemctl reenable sipd
attach
wait_for 120 mountpoint -q "$MODELS"
wait_for 300 is_property ActiveState active
generate

step "The disk gives EIO for 3 s in the middle of a reply: it goes on"
pid=$(property MainPID) since=$(now)
begin "Once" 8 --request-id three-seconds
python3 /root/partition.py cut 3
wait "$client" || fail "the request did not survive three seconds"
cat /root/reply
lines "$since" "read failed with EIO"
logged "$since" "trying again in" || fail "the journal does not say that reads are tried again"
[[ "$(n_events storage_fault --since "@$since")" == 0 ]] || fail "a fault that was waited out is told as one"
[[ "$(n_records SIPD_REQUEST_ID=three-seconds SIPD_COMPLETION_TOKENS=8)" == 1 ]]
expect_property MainPID "$pid"

step "The disk gives EIO for longer: the request ends with its reason, the daemon stays, the next one is served"
since=$(now)
python3 /root/partition.py cut
! generate "Twice" 2>/root/answer || fail "a request was served from a disk that gives EIO"
cat /root/answer
grep -q "STORAGE_FAULT" /root/answer || fail "the client was not told the reason"
[[ "$(n_records SIPD_ERROR=STORAGE_FAULT SIPD_FINISH_REASON=error --since "@$since")" == 1 ]]
[[ "$(n_events storage_fault SIPD_PATH="$MODELS/model.gguf" --since "@$since")" == 1 ]]
event storage_fault
python3 /root/partition.py whole
generate "Third"
expect_property MainPID "$pid"

step "The disk vanishes in the middle of a reply: systemd stops the daemon, and starts it when the disk is back"
since=$(now)
begin "Fourth" 20
pci=$(dirname "$(readlink -f /sys/block/vdb/device)")
echo 1 >"$pci/remove"
! wait "$client" || fail "a reply was finished without a disk"
cat /root/answer
wait_for 120 is_property ActiveState inactive
expect_property Result success
wait_for 30 is_not mountpoint -q "$MODELS"
[[ "$(n_events stopped --since "@$since")" == 1 ]]
lines "$since" "read failed with"
echo 1 >/sys/bus/pci/rescan
attach
wait_for 120 mountpoint -q "$MODELS"
wait_for 300 is_property ActiveState active
[[ "$(property MainPID)" != "$pid" ]]
generate "Fifth"

step "The disk of the snapshots is full: replies go on, one line says why nothing is kept, and it is tried again"
rm "$DROP_INS/usb-disk.conf"
mkdir "$SMALL"
mount -t tmpfs -o size=24M,mode=1777 tmpfs "$SMALL"
printf '[Service]\nReadWritePaths=%s\n' "$SMALL" >"$DROP_INS/snapshots.conf"
cp /root/tiny.gguf /var/lib/sipd/models/tiny.gguf
write_settings /var/lib/sipd/models/tiny.gguf
printf 'snapshot_dir = "%s/snapshots"\nsnapshot_min_tokens = 64\n' "$SMALL" >>/etc/sipd/sipd.toml
systemctl daemon-reload
restart
pid=$(property MainPID)
generate "$(long_text apples)"
wait_for 30 has_snapshots 1
fallocate --length "$(df --output=avail --block-size=1 "$SMALL" | tail -n 1)" "$SMALL/filler"
since=$(now)
for what in pears plums; do
    generate "$(long_text $what)"
done
wait_for 30 has_events 1 SIPD_EVENT=snapshot_failed --since "@$since"
has_snapshots 1
event snapshot_failed
lines "$since" "do not fit"
lines "$since" "no snapshots are written"
rm "$SMALL/filler"
sleep 61 # it is tried again after a minute
generate "$(long_text cherries)"
wait_for 30 has_snapshots 2
[[ "$(n_events snapshot_failed --since "@$since")" == 1 ]] || fail "the same fault was told again"

step "The disk of the snapshots turns read-only: replies go on, one line says it"
mount -o remount,ro "$SMALL"
since=$(now)
for what in grapes quinces; do
    generate "$(long_text $what)"
done
wait_for 30 has_events 1 SIPD_EVENT=snapshot_failed --since "@$since"
event snapshot_failed
lines "$since" "Read-only file system"
expect_property MainPID "$pid"
[[ "$(n_events snapshot_failed --since "@$since")" == 1 ]] || fail "the same fault was told again"
# A daemon that finds it so from the start serves all the same.
restart
generate "$(long_text figs)"
expect_property ActiveState active

step "Stop"
systemctl stop sipd
expect_property Result success
echo "storage: all steps passed"
