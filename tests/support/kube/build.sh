#!/usr/bin/env bash
# Builds a real kube-apiserver (1.20.2) and unpacks etcd (3.4), both from Debian bookworm's packages, for the Kubernetes tests.
# Installs nothing system-wide, needs root for nothing. About 4 minutes and 2.4 GB of scratch space on 2 cores; once built, does nothing.
# usage: build.sh [DIRECTORY]     default: $GREL_KUBE_HOME, else ~/.cache/grelmicro-kube; prints it
set -euo pipefail
OUT=${1:-${GREL_KUBE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/grelmicro-kube}}
[ -x "$OUT/bin/kube-apiserver" ] && [ -x "$OUT/bin/etcd" ] && { echo "$OUT"; exit 0; }
for tool in apt-get dpkg-source make; do
  command -v "$tool" >/dev/null || { echo "build.sh: no $tool here" >&2; exit 2; }
done
W=$(mktemp -d)
trap 'chmod -R u+w "$W"; rm -rf "$W"' EXIT
mkdir -p "$W"/{lists/partial,debs,root,src,home} "$OUT/bin"
cd "$W"

mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1 || true)
[ -n "$mirror" ] || { echo "build.sh: no Debian mirror in /etc/apt" >&2; exit 2; }
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" > src.list
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$W/src.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$W/lists"
  -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd src && "${apt[@]}" source --download-only kubernetes=1.20.5+really1.20.2-1.1+deb12u1 && dpkg-source --no-check -x kubernetes_*.dsc k >/dev/null)

# The binary packages come from the lists of the machine itself, which need root to be brought up to date.
[ "$(id -u)" != 0 ] || apt-get -qq update
(cd debs && apt-get -qq -o APT::Sandbox::User=root download \
  golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server rsync libpopt0 libxxhash0)
for package in debs/*.deb; do dpkg -x "$package" root; done

# reflect2 1.0.1, as vendored, crashes on maps under Go 1.18 and newer; Debian's own 1.0.2 does not.
vendored=src/k/vendor/github.com/modern-go/reflect2
rm -f $vendored/*.go $vendored/*.s
cp root/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $vendored/
rm -f $vendored/*_test.go

export HOME=$W/home GOPATH=$W/gopath GOPROXY=off CGO_ENABLED=0
export PATH=$W/root/usr/lib/go-1.19/bin:$W/root/usr/bin:$PATH LD_LIBRARY_PATH=$W/root/usr/lib/x86_64-linux-gnu
unset GOFLAGS GOROOT
(cd src/k && make WHAT=cmd/kube-apiserver GOFLAGS=-p=2) > "$OUT/build.log" 2>&1 ||
  { tail -n 20 "$OUT/build.log" >&2; exit 1; }
cp src/k/_output/bin/kube-apiserver root/usr/bin/etcd "$OUT/bin/"
echo "$OUT"
