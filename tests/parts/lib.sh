# What every installer here shares. A part is a real program that tests run against; it lives in the cache, outside the
# tree, one directory per version. A directory appears only when it is complete, so its presence is the whole check.
# Sourced, never run. The caller sets `name` and `version`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${HWTEST_CACHE:-${HIGHWATER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/highwater}}
parts=$cache/parts
mkdir -p "$parts"

# Go's own caches go beside the parts, so that removing one folder removes everything.
export GOPATH=$cache/go GOCACHE=$cache/go/build GOMODCACHE=$cache/go/pkg/mod
export GOFLAGS="-modcacherw ${GOFLAGS:-}"

need() { # PROGRAM WHAT
  command -v "$1" >/dev/null || { echo "$name: needs $1 ($2)" >&2; exit 1; }
}

present() { # true when this very version is there; also points $parts/NAME at it
  [ -d "$parts/$name-$version" ] || return 1
  ln -sfn "$name-$version" "$parts/$name"
}

scratch() { # sets $work, an empty directory beside the final one, gone when the script ends
  work=$(mktemp -d "$parts/.$name.XXXXXX")
  trap 'rm -rf "$work"' EXIT
}

finish() { # DIRECTORY: what was built; moved in place in one step
  mv -T "$1" "$parts/$name-$version"
  present
  echo "$name $version installed"
}

packages() { # DEBIAN-PACKAGE=UPSTREAM-VERSION...: unpacks them beside each other; nothing of the system is changed
  unpack "$@"
  finish "$work/out"
}

unpack() { # as packages, into $work/out, and no more
  need apt-get "Debian's package tool"
  scratch
  mkdir "$work/out" "$work/debs"
  local package
  for package in "$@"; do package_file "${package%%=*}" "${package#*=}"; done
}

package_file() { # PACKAGE UPSTREAM-VERSION: Debian's own part of the version may be any
  local available
  available=$(apt-cache madison "$1" | awk -v version="$2" '{ v = $3; sub(/^[0-9]+:/, "", v) } index(v, version) == 1 && !found++ { print $3 }')
  [ -n "$available" ] || { echo "$name: there is no $1 $2 (apt-get update?)" >&2; exit 1; }
  (cd "$work/debs" && apt-get download -q "$1=$available" && dpkg -x "$1"_*.deb "$work/out") \
    >>"$parts/$name.log" 2>&1 || { tail -n 20 "$parts/$name.log" >&2; exit 1; }
}

go_tool() { # PACKAGE MODULE-VERSION: builds one Go program from the module proxy
  need go "a Go toolchain"
  scratch
  (
    cd "$work" && go mod init part && go get -tool "$1@$2" &&
      CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o "out/$name" "$1"
  ) >"$parts/$name.log" 2>&1 || { tail -n 20 "$parts/$name.log" >&2; exit 1; }
  finish "$work/out"
}

kubernetes_tool() { # builds k8s.io/kubernetes/cmd/NAME
  need go "a Go toolchain"
  scratch
  (
    cd "$work" && go mod init part && kubernetes_modules &&
      CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version
        -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")" \
        -o "out/$name" "k8s.io/kubernetes/cmd/$name"
  ) >"$parts/$name.log" 2>&1 || { tail -n 20 "$parts/$name.log" >&2; exit 1; }
  finish "$work/out"
}

kubernetes_modules() { # what lies in Kubernetes' repository beside the module is released apart, as 0.N for its 1.N
  local source module
  go mod edit -require "k8s.io/kubernetes@v$version"
  source=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  for module in $(sed -n 's/^\t*\(k8s.io\/[a-z-]*\) => .\/staging.*/\1/p' "$source/go.mod"); do
    go mod edit -replace "$module=$module@v0.${version#1.}"
  done
}
