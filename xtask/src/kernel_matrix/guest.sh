# Process 1 of the guest. Results go to the second serial line; lines that begin with @ are for xtask.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CI=true
exec < /dev/null
# a workspace below what is now covered stays where it is
for i in "${!KEEP[@]}"; do
  case ${KEEP[i]}/ in
    /tmp/* | /run/*) mkdir -p "/.keep/$i" && mount --bind "${KEEP[i]}" "/.keep/$i" ;;
  esac
done
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
for i in "${!KEEP[@]}"; do
  if [ -d "/.keep/$i" ]; then mkdir -p "${KEEP[i]}" && mount --move "/.keep/$i" "${KEEP[i]}"; fi
done
mkdir -p /run/lock /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t securityfs securityfs /sys/kernel/security
stty -F /dev/ttyS1 raw -echo
exec > /dev/ttyS1 2>&1
# as on a node that kubelet runs on; everything else is loaded by the kernel when it is asked for
modprobe br_netfilter
sysctl -qw kernel.panic=-1 kernel.printk='3 4 1 3'
ip link set lo up
echo "@up $(cut -d' ' -f1 /proc/uptime) $(uname -r)"

# scenario INDEX SECONDS MODE COMMAND...
scenario() {
  local index=$1 limit=$2 mode=$3 program rc start=$SECONDS
  shift 3
  echo "@begin $index"
  (cd /tmp && AGENT_NETWORK_TEST_MODE=$mode exec timeout -k 10 "$limit" "$@") > /run/output 2>&1 &
  program=$!
  # whoever waits sees each test end; not by a pipe, which a process that a test left behind would hold open
  tail -n +1 -s 0.5 -f --pid=$program /run/output | grep --line-buffered '^test .* \.\.\. ' &
  wait $!
  wait $program
  rc=$?
  echo "@output $index"
  if [ $rc = 0 ]; then grep '^test result:' /run/output; else tail -c 30000 /run/output; fi | sed 's/^/ /'
  echo
  echo "@end $index $rc $((SECONDS - start))"
}
