# What every installer here shares. A part is a real program that tests run against; it lives in the cache, outside the
# tree, one directory per version. A directory appears only when it is complete, so its presence is the whole check.
# Sourced, never run. The caller sets `name` and `version`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${HWTEST_CACHE:-${HIGHWATER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/highwater}}
parts=$cache/parts
mkdir -p "$parts"

# Go's own caches go beside the parts, so that removing one folder removes everything.
export GOPATH=$cache/go GOCACHE=$cache/go/build GOMODCACHE=$cache/go/pkg/mod GOFLAGS=-modcacherw

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

go_tool() { # PACKAGE MODULE-VERSION: builds one Go program from the module proxy
  need go "a Go toolchain"
  scratch
  (
    cd "$work" && go mod init part && go get -tool "$1@$2" &&
      CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o "out/$name" "$1"
  ) >"$parts/$name.log" 2>&1 || { tail -n 20 "$parts/$name.log" >&2; exit 1; }
  finish "$work/out"
}
