#!/bin/bash
# build-bins.sh: a whole small Kubernetes (control plane, kubelet, kube-proxy, kubectl, etcd, CoreDNS, containerd, the
# CNI plugins of a primary network, Multus) and the tests' own pause and probe, built from Go modules alone, pinned by
# gomod/go.mod and gomod/go.sum, Multus by multus/: its release does not compile with the cluster's k8s.io/kubelet.
# Prints the folder they are in: one in the cache, named for the hash of everything
# they are made from. What is there already costs nothing; from nothing it is 9 minutes of two cores.
# Environment: AGENT_NETWORK_CACHE (default /var/cache/agent-network), GO (the go command), JOBS (packages compiled at
# once; default: as many as there are cores).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
hash=$(cat "$here/build-bins.sh" "$here"/{gomod,multus}/go.{mod,sum} "$here"/gomod/*/main.go | sha256sum | cut -c1-16)
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
kube ./kube
etcd go.etcd.io/etcd/server/v3
coredns ./coredns
containerd github.com/containerd/containerd/v2/cmd/containerd
containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
ctr github.com/containerd/containerd/v2/cmd/ctr
crictl sigs.k8s.io/cri-tools/cmd/crictl
cnitool github.com/containernetworking/cni/cnitool
bridge github.com/containernetworking/plugins/plugins/main/bridge
loopback github.com/containernetworking/plugins/plugins/main/loopback
host-local github.com/containernetworking/plugins/plugins/ipam/host-local
portmap github.com/containernetworking/plugins/plugins/meta/portmap
pause ./pause
probe ./probe
L
[ -x "$out/multus" ] || multus=gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus
[ ${#want[@]} -gt 0 ] || [ -n "${multus:-}" ] || exit 0

go=${GO:-go}
command -v "$go" >/dev/null || { echo "build-bins.sh: no '$go' on PATH: install Go 1.26 or set GO" >&2; exit 1; }
export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS=-mod=readonly
cd "$here/gomod"
# Kubernetes takes its own version for v0.0.0 when nobody tells it, and its parts then refuse each other.
version=$("$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
ldflags='-s -w'
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
  ldflags+=" -X $package.gitTreeState=clean -X $package.gitCommit=none -X $package.buildDate=1970-01-01T00:00:00Z"
done
# -dwarf=false and -l save a quarter of the compiler's time; these programs are only ever used by tests.
stage=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$stage"' EXIT
build() {
  "$go" build ${JOBS:+-p "$JOBS"} -trimpath -gcflags='all=-dwarf=false -l' -ldflags="$ldflags" -o "$stage/" "$@"
}
[ ${#want[@]} -eq 0 ] || build "${want[@]}"
[ -z "${multus:-}" ] || (cd "$here/multus" && build "$multus")
[ ! -f "$stage/server" ] || mv "$stage/server" "$stage/etcd"
mv "$stage"/* "$out/"
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
  ln -sf kube "$out/$name"
done
