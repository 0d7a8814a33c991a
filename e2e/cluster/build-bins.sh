#!/bin/bash
# build-bins.sh: containerd, its shim, ctr, crictl, cnitool, the loopback plugin, pause and probe, built from Go
# modules alone, pinned by gomod/go.mod and gomod/go.sum. Prints the folder they are in: one in the cache, named for
# the hash of everything they are made from. What is there already costs nothing.
# Environment: AGENT_NETWORK_CACHE (default /var/cache/agent-network), GO (the go command), JOBS (packages compiled at
# once; default: as many as there are cores).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
hash=$(cat "$here/build-bins.sh" "$here"/gomod/go.{mod,sum} "$here"/gomod/*/main.go | sha256sum | cut -c1-16)
out=${AGENT_NETWORK_CACHE:-/var/cache/agent-network}/cluster-$hash
mkdir -p "$out"
echo "$out"

# One build at a time, beside the final place and renamed: no half-written program, whenever it is cut short.
exec 9>"$out/.lock"
flock 9
rm -rf "$out"/.build.*

want=()
while read -r program package; do
  [ -x "$out/$program" ] || want+=("$package")
done <<'L'
containerd github.com/containerd/containerd/v2/cmd/containerd
containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
ctr github.com/containerd/containerd/v2/cmd/ctr
crictl sigs.k8s.io/cri-tools/cmd/crictl
cnitool github.com/containernetworking/cni/cnitool
loopback github.com/containernetworking/plugins/plugins/main/loopback
pause ./pause
probe ./probe
L
[ ${#want[@]} -gt 0 ] || exit 0

go=${GO:-go}
command -v "$go" >/dev/null || { echo "build-bins.sh: no '$go' on PATH: install Go 1.26 or set GO" >&2; exit 1; }
export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS=-mod=readonly
cd "$here/gomod"
# -dwarf=false and -l save a quarter of the compiler's time; these programs are only ever used by tests.
stage=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$stage"' EXIT
"$go" build ${JOBS:+-p "$JOBS"} -trimpath -gcflags='all=-dwarf=false -l' -ldflags='-s -w' -o "$stage/" "${want[@]}"
mv "$stage"/* "$out/"
