#!/bin/bash
# pki.sh DIR SERVER NODE=ADDRESS...: in DIR, the certificates and kubeconfigs of a cluster whose API server is at the
# address SERVER: a CA, the control plane's identities, one kubelet identity and serving certificate for each node.
set -euo pipefail
dir=$1 server=$2
shift 2
mkdir -p "$dir"
cd "$dir"

key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

authority() { # NAME
  openssl req -x509 "${key[@]}" -keyout "$1.key" -out "$1.crt" -days 30 -subj "/CN=e2e $1" \
    -addext keyUsage=critical,keyCertSign,cRLSign
}

certificate() { # NAME SUBJECT clientAuth|serverAuth CA [ALTERNATIVE-NAMES]
  openssl req "${key[@]}" -keyout "$1.key" -out "$1.csr" -subj "$2"
  {
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=$3"
    [ -z "${5:-}" ] || echo "subjectAltName=$5"
  } > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$4.crt" -CAkey "$4.key" -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt"
}

user() { # NAME SUBJECT: a client of the API server and its kubeconfig
  certificate "$1" "$2" clientAuth ca
  cat > "$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$server:6443", certificate-authority: $dir/ca.crt}}]
users: [{name: u, user: {client-certificate: $dir/$1.crt, client-key: $dir/$1.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
K
}

authority ca
authority front-proxy-ca
openssl ecparam -name prime256v1 -genkey -noout -out service-accounts.key
openssl pkey -in service-accounts.key -pubout -out service-accounts.pub
kubernetes=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
certificate apiserver /CN=kube-apiserver serverAuth ca "IP:127.0.0.1,IP:$server,IP:10.96.0.1,$kubernetes"
certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth ca
certificate front-proxy /CN=front-proxy-client clientAuth front-proxy-ca
user admin /O=system:masters/CN=admin
user controller-manager /CN=system:kube-controller-manager
user scheduler /CN=system:kube-scheduler
user kube-proxy /CN=system:kube-proxy
for node in "$@"; do
  name=${node%=*}
  user "$name" "/O=system:nodes/CN=system:node:$name"
  certificate "$name-serving" "/CN=$name" serverAuth ca "IP:${node#*=},DNS:$name"
done
